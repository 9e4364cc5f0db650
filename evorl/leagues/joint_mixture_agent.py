"""Actor for all players of a game, each of which samples one of its policies at the start of an episode."""

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
    """Pool of policies, and the probabilities with which each player samples them."""

    pool: dict[str, PyTree]  # by role, as its policy set reads them, leaves [capacity, players, ...]
    weights: Float[Array, "players capacity"]


@struct.dataclass
class MixtureMemory:
    """Sampled policies and recurrent states of all players during an episode."""

    profile: Int[Array, " players"]  # index of each player's sampled policy, -1 before the first step
    memory: dict[str, Memory]  # recurrent states of each role's players, leaves [players, ...]


@dataclass(frozen=True, eq=False)
class JointMixtureAgent:
    """Actor for all players of a game, whose parameters are `PolicyMixtures`. It does not learn."""

    roles: Roles
    policy_sets: Mapping[str, PolicySet]

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return group_sizes(self.roles.game.action_space)

    def initial_memory(self) -> MixtureMemory:
        return MixtureMemory(
            jnp.full(self.roles.num_players, -1, jnp.int32), init_memories(self.roles, self.policy_sets)
        )

    def act(
        self, params: PolicyMixtures, obs: Any, memory: MixtureMemory, key: Key
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """Act for all players, with the policies that are sampled at the first step of the episode."""
        key_draw, key_act = jax.random.split(key)
        profile = jnp.where(memory.profile < 0, sample_policies(key_draw, params.weights), memory.profile)
        actions, after = act_jointly(self.roles, self.policy_sets, params.pool, profile, obs, memory.memory, key_act)
        return actions, MixtureMemory(profile, after), {}

    mode = act  # a mixture has no separate greedy action
