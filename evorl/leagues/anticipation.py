"""Players who play their best response to the others in some episodes, and the average of their past in all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import tree
from evorl.leagues.acting import Cast
from evorl.leagues.playing import acts_together, memories
from evorl.leagues.roles import Roles
from evorl.spaces import sizes
from evorl.types import Agent, Chooses, Hyperparams, Key, Memory

UNDRAWN = -1


@struct.dataclass
class Strategies:
    """The parameters of a player's two policies."""

    response: Any
    average: Any


@dataclass(frozen=True)
class Pair:
    """The agents of a role: its best response to the others, and the average of those before."""

    response: Agent
    average: Chooses


@dataclass(frozen=True, eq=False)
class Averaging:
    """Players of their average policy."""

    pair: Pair

    memory = ()

    def act(self, kept: Strategies, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        return self.pair.average.act(kept.average, obs, (), key, ())[0], memory


@dataclass(frozen=True, eq=False)
class Anticipating:
    """Players who draw when an episode begins which of their policies they play, their response as it explores.

    What is kept of them are their Strategies and the hyperparameters: `anticipation`, how likely a response is, and
    those of responses. The memory is UNDRAWN, then 1 with a response or 0.
    """

    pair: Pair

    @property
    def memory(self) -> Array:
        return jnp.int8(UNDRAWN)

    def act(self, kept: tuple[Strategies, Any], obs: Any, memory: Array, key: Key) -> tuple[Any, Array]:
        policies, hyperparams = kept
        key_drawn, key_response, key_average = jax.random.split(key, 3)
        drawn = jax.random.bernoulli(key_drawn, hyperparams.anticipation).astype(jnp.int8)
        responds = jnp.where(memory == UNDRAWN, drawn, memory)
        response = self.pair.response.act(policies.response, obs, (), key_response, hyperparams.response)[0]
        average = self.pair.average.act(policies.average, obs, (), key_average, ())[0]
        return tree.where(responds == 1, response, average), responds


@dataclass(frozen=True, eq=False)
class Anticipants:
    """An agent for all players of a game, whose params are Strategies by role, leaves [players, ...].

    Greedy it plays the average policies, and exploring too unless it `anticipates`. Each role's players remember which
    policy they play, which is also in the extras.
    """

    roles: Roles
    pairs: Mapping[str, Pair]
    anticipates: bool = False

    @property
    def groups(self) -> dict[str, int]:
        """How many members each group has."""
        return sizes(self.roles.game.action_space)

    @property
    def casts(self) -> dict[str, Cast]:
        """How each role's players act who anticipate."""
        return {name: Anticipating(pair) for name, pair in self.pairs.items()}

    def memory(self) -> Memory:
        return memories(self.roles, self.casts) if self.anticipates else ()

    def act(
        self, params: Any, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        if not self.anticipates:
            return self.mode(params, obs, memory, key, hyperparams)
        of_each = [(role, tree.broadcast(hyperparams, len(role.players))) for role in self.roles.roles]
        kept = {role.name: (params[role.name], numbers) for role, numbers in of_each}
        actions, memory = self._all(self.casts, kept, obs, memory, key)
        return actions, memory, memory

    def mode(
        self, params: Any, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del hyperparams
        casts = {name: Averaging(pair) for name, pair in self.pairs.items()}
        actions, _ = self._all(casts, params, obs, dict.fromkeys(casts, ()), key)
        return actions, memory, {}

    def probabilities(self, params: Any, obs: Any, hyperparams: Hyperparams) -> dict[str, Array]:
        """Those of the average policies, [1, choices] by group."""
        del hyperparams
        found = {}
        for role in self.roles.roles:
            average = self.pairs[role.name].average
            each = jax.vmap(lambda p, obs, average=average: average.probabilities(p, obs, ()))
            found |= self.roles.spread(role, each(params[role.name].average, self.roles.stacked(role, obs)))
        return found

    def _all(self, casts: Mapping[str, Cast], kept: Any, obs: Any, memory: Any, key: Key) -> tuple[Any, Any]:
        """What all players do, who have one policy each to choose from."""
        pool, first = tree.broadcast(kept, 1), jnp.zeros(self.roles.num_players, jnp.int32)
        return acts_together(self.roles, casts, pool, first, obs, memory, key)
