"""Where new levels come from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl import hyperparameters
from evorl.errors import require
from evorl.types import Evolver, Hyperparams, Key, Level, Leveled, State


@runtime_checkable
class Generator(Protocol):
    """New levels, n at a time; it is told what they were worth."""

    def hyperparams(self) -> Hyperparams:
        """Those of its parts at their defaults; {} without any."""
        ...

    def init(self, key: Key, env: Leveled, n: int, hyperparams: Hyperparams) -> State:
        """The state before the first levels; raises OptionError where it cannot make n at a time."""
        ...

    def ask(
        self, key: Key, state: State, env: Leveled, n: int, env_params: Any, hyperparams: Hyperparams
    ) -> tuple[Level, Any, State]:
        """n levels, leaves [n, ...], what they were made of, and the state that waits to be told."""
        ...

    def tell(self, key: Key, made_of: Any, score: Float[Array, " n"], state: State, hyperparams: Hyperparams) -> State:
        """The state that knows the scores; NaN of a level that has none."""
        ...


@dataclass(frozen=True)
class SampledLevels:
    """Levels as the environment draws them."""

    def hyperparams(self) -> dict[str, Any]:
        return {}

    def init(self, key: Key, env: Leveled, n: int, hyperparams: Hyperparams) -> tuple[()]:
        del key, env, n, hyperparams
        return ()

    def ask(
        self, key: Key, state: State, env: Leveled, n: int, env_params: Any, hyperparams: Hyperparams
    ) -> tuple[Level, tuple[()], State]:
        del hyperparams
        return jax.vmap(env.sample, (0, None))(jax.random.split(key, n), env_params), (), state

    def tell(self, key: Key, made_of: Any, score: Float[Array, " n"], state: State, hyperparams: Hyperparams) -> State:
        del key, made_of, score, hyperparams
        return state


@dataclass(frozen=True)
class EvolvedLevels:
    """Levels that an evolver searches for, whose fitness are the scores: decode makes of a vector [size] a level."""

    evolver: Evolver
    decode: Callable[[Float[Array, " size"]], Level]
    size: int

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.of(self.evolver)

    def init(self, key: Key, env: Leveled, n: int, hyperparams: Hyperparams) -> State:
        del env
        given = self.evolver.population_size
        require(given == n, "population_size", given, f"must be the levels of an iteration, {n}")
        return self.evolver.init(key, jnp.zeros(self.size), hyperparams)

    def ask(
        self, key: Key, state: State, env: Leveled, n: int, env_params: Any, hyperparams: Hyperparams
    ) -> tuple[Level, Any, State]:
        del env, n, env_params
        genomes, state = self.evolver.ask(key, state, hyperparams)
        points = jax.vmap(lambda genome: self.evolver.to_params(state, genome, hyperparams))(genomes)
        return jax.vmap(self.decode)(points), genomes, state

    def tell(self, key: Key, made_of: Any, score: Float[Array, " n"], state: State, hyperparams: Hyperparams) -> State:
        return self.evolver.tell(key, made_of, score, state, hyperparams)[0]


SAMPLED = SampledLevels()
