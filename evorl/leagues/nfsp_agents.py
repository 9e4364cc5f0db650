"""Players who play their best response to the others in some episodes, and the average of their past in all others."""

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
    """The parameters of a player's two policies."""

    response: Params
    average: Params


@dataclass(frozen=True)
class NFSPAgents:
    """The agents of a role: its best response to the others, and the average of those before."""

    response: Agent
    average: HasActionProbabilities


@dataclass(frozen=True, eq=False)
class AveragePolicySet:
    """Players of their average policy."""

    agents: NFSPAgents

    initial_memory = None

    def act(self, kept: NFSPParams, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        return self.agents.average.act(kept.average, obs, None, key)[0], memory


@dataclass(frozen=True, eq=False)
class AnticipatoryPolicySet:
    """Players who draw when an episode begins which of their policies they play, their response as it explores.

    What is kept of them are their NFSPParams, how likely a response is, and the numbers of its agent. The memory is
    NOT_SAMPLED, then 1 with a response or 0.
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
    """An agent for all players of a game, whose params are NFSPParams by role, leaves [players, ...].

    Greedy it plays the average policies, and exploring too unless it `is_anticipatory`. Each role's players remember
    which policy they play, which is also in the extras.
    """

    roles: Roles
    agents: Mapping[str, NFSPAgents]
    anticipation: Number
    is_anticipatory: bool = False

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return group_sizes(self.roles.game.action_space)

    @property
    def policy_sets(self) -> dict[str, PolicySet]:
        """How each role's players act who anticipate."""
        return {name: AnticipatoryPolicySet(pair) for name, pair in self.agents.items()}

    def initial_memory(self) -> Memory:
        return init_memories(self.roles, self.policy_sets) if self.is_anticipatory else None

    def act(self, params: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        if not self.is_anticipatory:
            return self.mode(params, obs, memory, key)
        kept = {}  # numbers too, since what players act by is grouped under a vmap, which may close over none
        for role in self.roles.roles:
            numbers = self.anticipation, read_numbers(self.agents[role.name].response)
            kept[role.name] = (params[role.name], *tree.broadcast(numbers, len(role.players)))
        actions, memory = self._act_jointly(self.policy_sets, kept, obs, memory, key)
        return actions, memory, memory

    def mode(self, params: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        casts = {name: AveragePolicySet(pair) for name, pair in self.agents.items()}
        actions, _ = self._act_jointly(casts, params, obs, dict.fromkeys(casts, None), key)
        return actions, memory, {}

    def action_probabilities(self, params: Any, obs: Any) -> dict[str, Array]:
        """Those of the average policies, [1, choices] by group."""
        found = {}
        for role in self.roles.roles:
            average = self.agents[role.name].average
            each = jax.vmap(lambda p, obs, average=average: average.action_probabilities(p, obs))
            found |= self.roles.unstack_players(
                role, each(params[role.name].average, self.roles.stack_players(role, obs))
            )
        return found

    def _act_jointly(
        self, casts: Mapping[str, PolicySet], kept: Any, obs: Any, memory: Any, key: Key
    ) -> tuple[Any, Any]:
        """What all players do, who have one policy each to choose from."""
        pool, first = tree.broadcast(kept, 1), jnp.zeros(self.roles.num_players, jnp.int32)
        return act_jointly(self.roles, casts, pool, first, obs, memory, key)
