"""Agents of NFSP, which play their best response in some episodes and their average policy in all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import tree
from evorl.leagues.payoff_estimation import act_jointly, init_memories
from evorl.leagues.policy_sets import PolicySet
from evorl.leagues.roles import Roles
from evorl.parts import Number, bind, read_numbers
from evorl.spaces import group_sizes
from evorl.types import Agent, HasActionProbabilities, Key, Memory, Params

NOT_SAMPLED = -1


@struct.dataclass
class NFSPParams:
    """Parameters of the two policies of a player."""

    response: Params
    average: Params


@dataclass(frozen=True)
class NFSPAgents:
    """Agents of a role: the best response to the other players, and the average of past responses."""

    response: Agent
    average: HasActionProbabilities


@dataclass(frozen=True, eq=False)
class AveragePolicySet:
    """Policy set in which players play their average policies."""

    agents: NFSPAgents

    initial_memory = None

    def act(self, kept: NFSPParams, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        return self.agents.average.act(kept.average, obs, None, key)[0], memory


@dataclass(frozen=True, eq=False)
class AnticipatoryPolicySet:
    """Policy set in which each player samples at the start of an episode which of its two policies it plays.

    The best response acts with exploration. A stored policy consists of the NFSPParams, the probability of
    the best response, and the hyperparameters of its agent. The recurrent state is NOT_SAMPLED before the
    first step, then 1 for the best response or 0 for the average policy.
    """

    agents: NFSPAgents

    @property
    def initial_memory(self) -> Array:
        return jnp.int8(NOT_SAMPLED)

    def act(self, kept: tuple[NFSPParams, Any, Any], obs: Any, memory: Array, key: Key) -> tuple[Any, Array]:
        policies, anticipation, numbers = kept
        key_drawn, key_response, key_average = jax.random.split(key, 3)
        drawn = jax.random.bernoulli(key_drawn, anticipation).astype(jnp.int8)
        responds = jnp.where(memory == NOT_SAMPLED, drawn, memory)
        response = bind(self.agents.response, numbers).act(policies.response, obs, None, key_response)[0]
        average = self.agents.average.act(policies.average, obs, None, key_average)[0]
        return tree.select(responds == 1, response, average), responds


@dataclass(frozen=True, eq=False)
class JointNFSPAgent:
    """Actor for all players of a game, whose parameters are NFSPParams by role, leaves [players, ...].

    `mode` plays the average policies, and so does `act` unless the actor `is_anticipatory`. If it is, the
    recurrent states of the players say which policy they play. The extras contain them, too.
    """

    roles: Roles
    agents: Mapping[str, NFSPAgents]
    anticipation: Number
    is_anticipatory: bool = False

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return group_sizes(self.roles.game.action_space)

    @property
    def policy_sets(self) -> dict[str, PolicySet]:
        """Return the policy set of each role in which players sample one of their two policies."""
        return {name: AnticipatoryPolicySet(pair) for name, pair in self.agents.items()}

    def initial_memory(self) -> Memory:
        return init_memories(self.roles, self.policy_sets) if self.is_anticipatory else None

    def act(self, params: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        if not self.is_anticipatory:
            return self.mode(params, obs, memory, key)
        kept = {}  # with the hyperparameters, since `apply_by_policy` must not close over traced values
        for role in self.roles.roles:
            numbers = self.anticipation, read_numbers(self.agents[role.name].response)
            kept[role.name] = (params[role.name], *tree.broadcast(numbers, len(role.players)))
        actions, memory = self._act_jointly(self.policy_sets, kept, obs, memory, key)
        return actions, memory, memory

    def mode(self, params: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        policy_sets = {name: AveragePolicySet(pair) for name, pair in self.agents.items()}
        actions, _ = self._act_jointly(policy_sets, params, obs, dict.fromkeys(policy_sets, None), key)
        return actions, memory, {}

    def action_probabilities(self, params: Any, obs: Any) -> dict[str, Array]:
        """Return the action probabilities of the average policies, by group, shape [1, choices]."""
        found = {}
        for role in self.roles.roles:
            average = self.agents[role.name].average
            each = jax.vmap(lambda p, obs, average=average: average.action_probabilities(p, obs))
            found |= self.roles.unstack_players(
                role, each(params[role.name].average, self.roles.stack_players(role, obs))
            )
        return found

    def _act_jointly(
        self, policy_sets: Mapping[str, PolicySet], kept: Any, obs: Any, memory: Any, key: Key
    ) -> tuple[Any, Any]:
        """Act for all players, each with its only stored policy."""
        pool, first = tree.broadcast(kept, 1), jnp.zeros(self.roles.num_players, jnp.int32)
        return act_jointly(self.roles, policy_sets, pool, first, obs, memory, key)
