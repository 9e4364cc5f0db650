"""The players of a game who draw a policy each when an episode begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl.leagues.meta_games import sample_policies
from evorl.leagues.payoff_estimation import act_jointly, init_memories
from evorl.leagues.policy_sets import PolicySet
from evorl.leagues.roles import Roles
from evorl.spaces import group_sizes
from evorl.types import Key, Memory


@struct.dataclass
class PolicyMixtures:
    """Policies, leaves [capacity, ...], and how likely each player draws them, [players, capacity]."""

    pool: dict[str, PyTree]  # by role what its policies read
    weights: Float[Array, "players capacity"]


@struct.dataclass
class MixtureMemory:
    """What is remembered during an episode."""

    profile: Int[Array, " players"]  # the policies that are drawn, -1 before
    memory: dict[str, Memory]  # of each role's players


@dataclass(frozen=True, eq=False)
class JointMixtureAgent:
    """An agent for all players of a game, whose params are PolicyMixtures; it learns nothing."""

    roles: Roles
    policy_sets: Mapping[str, PolicySet]

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return group_sizes(self.roles.game.action_space)

    def initial_memory(self) -> MixtureMemory:
        return MixtureMemory(
            jnp.full(self.roles.num_players, -1, jnp.int32), init_memories(self.roles, self.policy_sets)
        )

    def act(
        self, params: PolicyMixtures, obs: Any, memory: MixtureMemory, key: Key
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """What all do, as the policies do that are drawn at the first step."""
        key_draw, key_act = jax.random.split(key)
        profile = jnp.where(memory.profile < 0, sample_policies(key_draw, params.weights), memory.profile)
        actions, after = act_jointly(self.roles, self.policy_sets, params.pool, profile, obs, memory.memory, key_act)
        return actions, MixtureMemory(profile, after), {}

    mode = act  # a mixture has no other greedy action
