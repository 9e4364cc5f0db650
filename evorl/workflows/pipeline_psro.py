"""PSRO whose trainings overlap: levels that learn at once, each against the mixture of those below."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import tree
from evorl.errors import require
from evorl.leagues.learned import Learned
from evorl.leagues.oracles import Answers, Oracle, Rivals, spent_by
from evorl.leagues.solvers import answered
from evorl.types import Key, Metrics
from evorl.workflows.psro import PSRO, PSROHyperparams, PSROState


@dataclass(frozen=True)
class PipelinePSRO(PSRO):
    """PSRO with levels of policies that are still being trained, the lowest of which is done with an iteration.

    McAleer et al. 2020, arXiv:2006.08555. A level answers the mixture of all policies that are done and of the levels
    below it, as they were when the iteration began; so a policy is trained in as many iterations as there are levels.
    """

    oracle: Oracle = field(kw_only=True)
    levels: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        room = f"must be from 2 to {self.capacity - 1}, fewer than the pool has room for"
        require(2 <= self.levels < self.capacity, "levels", self.levels, room)
        goes_on = isinstance(self.oracle, Learned) and self.oracle.warm
        require(
            goes_on, "oracle", type(self.oracle).__name__, "must be a training that goes on, Learned(..., warm=True)"
        )

    @property
    def most_iterations(self) -> int:
        return self.capacity - self.levels

    def begun(self, key: Key, hyperparams: PSROHyperparams, env_params: Any = None) -> PSROState:
        key_first, key_levels = jax.random.split(key)
        state = super().begun(key_first, hyperparams, env_params)
        begin = jax.vmap(lambda key: self.oracle.first(self.env, key, state.hyperparams.oracle))
        levels = begin(jax.random.split(key_levels, self.levels))
        return replace(state, pool=self.placed(state, levels), rest=levels.rest)

    def init(self, key: Key, hyperparams: PSROHyperparams, env_params: Any = None) -> PSROState:
        key_first, key_pay = jax.random.split(key)
        state = self.begun(key_first, hyperparams, env_params)
        return self.accepted(replace(state, payoffs=self.paid(state, key_pay, self.levels - 1)[0]))

    def step(self, state: PSROState, key: Key) -> tuple[PSROState, Metrics]:
        key_respond, key_top, key_pay = jax.random.split(key, 3)
        keys = jax.random.split(key_respond, self.levels)

        def respond(weights: Any, rest: Any, key: Key) -> Answers:
            rivals = Rivals(state.env_params, state.pool, weights)
            return self.oracle.respond(self.env, rivals, rest, key, state.hyperparams.oracle)

        levels = jax.vmap(respond)(self.mixtures(state), state.rest, keys)
        top = self.oracle.first(self.env, key_top, state.hyperparams.oracle).rest
        rest = tree.pushed(levels.rest, top)
        lowest = Answers(tree.index(levels.policies, 0), rest, jax.tree.map(jnp.sum, levels.metrics))
        pool = self.placed(state, levels)
        new = replace(self.grown(state, lowest), pool=pool)
        paid, spent = self.paid(new, key_pay, self.levels - 1)
        return self.weighed(state, replace(new, payoffs=paid), spent_by([lowest.metrics, spent]))

    def mixtures(self, state: PSROState) -> Float[Array, "levels players capacity"]:
        """What each level answers: mixtures of all policies below it."""

        def below(level: Array) -> Float[Array, "players capacity"]:
            there = jnp.arange(self.capacity) < state.filled + level
            mask = jnp.broadcast_to(there, state.weights.shape)
            weights, _ = self.meta_solver(state.payoffs.mean, mask, state.hyperparams.solver)
            return answered(self.meta_solver, state.payoffs.mean, mask, weights)

        above_the_lowest = jax.vmap(below)(jnp.arange(1, self.levels))
        return jnp.concatenate([self.answered(state)[None], above_the_lowest])

    def placed(self, state: PSROState, levels: Answers) -> Any:
        """The pool with what levels have come to, the lowest after those that are done."""
        first = jnp.minimum(state.filled, self.most_iterations)
        return jax.tree.map(
            lambda pool, new: jax.lax.dynamic_update_slice_in_dim(pool, new, first, 0), state.pool, levels.policies
        )
