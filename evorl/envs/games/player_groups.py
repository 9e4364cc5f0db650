"""The players of a game as groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from evorl.errors import require
from evorl.spaces import Dict, Members, Space
from evorl.types import Array


@dataclass(frozen=True)
class PlayerGroups:
    """Each of some players by its name as a group of its own, or all of them together as one group "player"."""

    names: tuple[str, ...]
    together: bool = False

    @cached_property
    def groups(self) -> dict[str, slice]:
        """The players of each group."""
        if self.together:
            return {"player": slice(0, len(self.names))}
        return {name: slice(i, i + 1) for i, name in enumerate(self.names)}

    def game_space(self, *of: Space) -> Dict:
        """The space of a game, of that of each player; raises OptionError where those of one group differ."""
        for one in of:
            require(not self.together or one == of[0], "together", True, "needs players who see and do alike")
        sides = ((name, of[who], who) for name, who in self.groups.items())
        return Dict({name: Members(spaces[0], len(spaces)) for name, spaces, _ in sides})

    def split(self, values: Any) -> dict[str, Any]:
        """What players have, leaves [players, ...], by group."""
        return {name: jax.tree.map(lambda x, who=who: x[who], values) for name, who in self.groups.items()}

    def concatenate(self, actions: Mapping[str, Array]) -> Array:
        """What the members of each group do, [members, ...], as [players, ...]."""
        return jnp.concatenate([actions[name] for name in self.groups])


def create_player_groups(n: int, together: bool = False) -> PlayerGroups:
    """player_0, player_1, ..."""
    return PlayerGroups(tuple(f"player_{i}" for i in range(n)), together)
