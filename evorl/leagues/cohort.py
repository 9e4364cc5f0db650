"""The players of a game who draw a policy each when an episode begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl.leagues.acting import Cast
from evorl.leagues.meta_games import drawn
from evorl.leagues.playing import acts_together, memories
from evorl.leagues.roles import Roles
from evorl.spaces import sizes
from evorl.types import Hyperparams, Key, Memory


@struct.dataclass
class Mixtures:
    """Policies, leaves [capacity, ...], and how likely each player draws them, [players, capacity]."""

    pool: Any
    weights: Any


@struct.dataclass
class Drawn:
    """What is remembered during an episode."""

    profile: Any  # [players] int32, the policies that are drawn, -1 before
    memory: Any  # of each role's players


@dataclass(frozen=True, eq=False)
class Cohort:
    """An agent for all players of a game, whose params are Mixtures; it learns nothing."""

    roles: Roles
    casts: Mapping[str, Cast]

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return sizes(self.roles.game.action_space)

    def memory(self) -> Drawn:
        return Drawn(jnp.full(self.roles.num_players, -1, jnp.int32), memories(self.roles, self.casts))

    def act(
        self, params: Mixtures, obs: Any, memory: Drawn, key: Key, hyperparams: Hyperparams = ()
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """What all do, as the policies do that are drawn at the first step."""
        key_draw, key_act = jax.random.split(key)
        profile = jnp.where(memory.profile < 0, drawn(key_draw, params.weights), memory.profile)
        actions, after = acts_together(self.roles, self.casts, params.pool, profile, obs, memory.memory, key_act)
        return actions, Drawn(profile, after), {}

    mode = act  # a mixture has no other greedy action
