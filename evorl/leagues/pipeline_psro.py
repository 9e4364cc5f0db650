"""Pipeline PSRO: levels of policies train at the same time, each against the mixture of the policies below it."""

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import tree
from evorl.errors import require
from evorl.leagues.oracles import Oracle, OracleInputs, OracleOutputs, sum_counts
from evorl.leagues.psro import PSRO, PSROState
from evorl.leagues.solvers import select_opponent_mixtures, solve_meta_game
from evorl.leagues.training_oracle import TrainingOracle
from evorl.parts import bind, part
from evorl.types import Key, Metrics, Numbers


@part
class PipelinePSRO(PSRO):
    """Pipeline PSRO, in which several levels of policies train at the same time (McAleer et al. 2020).

    arXiv:2006.08555. A level trains against the mixture of all finished policies and of the levels below it,
    as they were at the start of the iteration. Each iteration finishes the lowest level and adds a new one at
    the top. A policy is therefore trained for as many iterations as there are levels.

    Args:
        oracle: TrainingOracle with warm=True.
        levels: Number of levels, from 2 to capacity - 1.

    Raises:
        OptionError: If the oracle or the number of levels is another one.
    """

    oracle: Oracle = field(kw_only=True)
    levels: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        room = f"must be from 2 to {self.capacity - 1}, below capacity"
        require(2 <= self.levels < self.capacity, "levels", self.levels, room)
        goes_on = isinstance(self.oracle, TrainingOracle) and self.oracle.warm
        require(
            goes_on,
            "oracle",
            type(self.oracle).__name__,
            "must be TrainingOracle(..., warm=True)",
        )

    @property
    def max_iterations(self) -> int:
        return self.capacity - self.levels

    def init_without_payoffs(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        """Return the initial state with a policy at every level and no payoffs yet.

        Args:
            key: Random key.
            numbers: Hyperparameters, nested by field name; None for those of the components.
            env_params: Environment parameters; None for the default parameters of the game.
        """
        key_first, key_levels = jax.random.split(key)
        state = super().init_without_payoffs(key_first, numbers, env_params)
        oracle = bind(self, state.numbers, None).oracle
        begin = jax.vmap(lambda key: oracle.init_policies(self.env, key))
        levels = begin(jax.random.split(key_levels, self.levels))
        return replace(state, pool=self.place_levels(state, levels), oracle_state=levels.oracle_state)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        key_first, key_pay = jax.random.split(key)
        state = self.init_without_payoffs(key_first, numbers, env_params)
        return self.check_accepted(replace(state, payoffs=self.update_payoffs(state, key_pay, self.levels - 1)[0]))

    def step(self, state: PSROState, key: Key) -> tuple[PSROState, Metrics]:
        key_respond, key_top, key_pay = jax.random.split(key, 3)
        keys, oracle = jax.random.split(key_respond, self.levels), bind(self, state.numbers, None).oracle

        def respond(weights: Any, oracle_state: Any, key: Key) -> OracleOutputs:
            rivals = OracleInputs(state.env_params, state.pool, weights)
            return oracle.respond(self.env, rivals, oracle_state, key)

        levels = jax.vmap(respond)(self.level_mixtures(state), state.oracle_state, keys)
        top = oracle.init_policies(self.env, key_top).oracle_state
        oracle_state = tree.shift_in(levels.oracle_state, top)
        lowest = OracleOutputs(tree.index(levels.policies, 0), oracle_state, jax.tree.map(jnp.sum, levels.metrics))
        pool = self.place_levels(state, levels)
        new = replace(self.add_policies(state, lowest), pool=pool)
        paid, spent = self.update_payoffs(new, key_pay, self.levels - 1)
        return self.update_meta_strategy(state, replace(new, payoffs=paid), sum_counts([lowest.metrics, spent]))

    def level_mixtures(self, state: PSROState) -> Float[Array, "levels players capacity"]:
        """Return the mixtures against which each level trains, shape [levels, players, capacity].

        Args:
            state: State of the workflow.
        """

        def mix_below_level(level: Array) -> Float[Array, "players capacity"]:
            there = jnp.arange(self.capacity) < state.num_policies + level
            mask = jnp.broadcast_to(there, state.weights.shape)
            weights, _ = solve_meta_game(bind(self, state.numbers).meta_solver, state.payoffs.mean, mask)
            return select_opponent_mixtures(self.meta_solver, state.payoffs.mean, mask, weights)

        above_the_lowest = jax.vmap(mix_below_level)(jnp.arange(1, self.levels))
        return jnp.concatenate([self.target_mixtures(state)[None], above_the_lowest])

    def place_levels(self, state: PSROState, levels: OracleOutputs) -> Any:
        """Return the pool with the current policies of all levels, directly after the finished policies.

        Args:
            state: State of the workflow.
            levels: Outputs of the oracle for all levels, the lowest one first, leaves [levels, ...].
        """
        first = jnp.minimum(state.num_policies, self.max_iterations)
        return jax.tree.map(
            lambda pool, new: jax.lax.dynamic_update_slice_in_dim(pool, new, first, 0), state.pool, levels.policies
        )
