"""Grouping of the players of a game."""

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
    """Players of a game as groups: one group with the name of each player, or one group "player" of all of them."""

    names: tuple[str, ...]
    together: bool = False

    @cached_property
    def groups(self) -> dict[str, slice]:
        """Return the slice of the players in each group."""
        if self.together:
            return {"player": slice(0, len(self.names))}
        return {name: slice(i, i + 1) for i, name in enumerate(self.names)}

    def game_space(self, *of: Space) -> Dict:
        """Return the space of the game, given the space of each player.

        It raises OptionError if the spaces of players in one group differ.
        """
        for one in of:
            require(
                not self.together or one == of[0],
                "together",
                True,
                "needs players with the same observation and action space",
            )
        sides = ((name, of[who], who) for name, who in self.groups.items())
        return Dict({name: Members(spaces[0], len(spaces)) for name, spaces, _ in sides})

    def split(self, values: Any) -> dict[str, Any]:
        """Split values of all players, leaves [players, ...], by group."""
        return {name: jax.tree.map(lambda x, who=who: x[who], values) for name, who in self.groups.items()}

    def concatenate(self, actions: Mapping[str, Array]) -> Array:
        """Concatenate the actions of all groups, [members, ...] each, to [players, ...]."""
        return jnp.concatenate([actions[name] for name in self.groups])


def create_player_groups(n: int, together: bool = False) -> PlayerGroups:
    """Create the grouping of n players with the names player_0, player_1 and so on."""
    return PlayerGroups(tuple(f"player_{i}" for i in range(n)), together)
