"""Generators of new levels."""

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.ec.openes import OpenES
from evorl.errors import OptionError, require, require_int
from evorl.parts import Number, number, part
from evorl.priors import Integer, Uniform
from evorl.tree import as_arrays
from evorl.types import DecodableLevelEnv, Evolver, Key, Level, LevelCrossoverEnv, LevelEnv, State


@runtime_checkable
class LevelGenerator(Protocol):
    """Protocol of a generator of new levels, which is updated with the scores of its levels."""

    def init(self, key: Key, env: LevelEnv, n: int) -> State:
        """Return the initial state of the generator.

        Args:
            key: Random key.
            env: Environment whose levels are generated.
            n: Number of levels per call of `ask`.

        Raises:
            OptionError: If the generator cannot make n levels of this environment.
        """
        ...

    def ask(self, key: Key, state: State, env: LevelEnv, n: int, env_params: Any) -> tuple[Level, Any, State]:
        """Generate n levels.

        Args:
            key: Random key.
            state: State of the generator.
            env: Environment whose levels are generated.
            n: Number of levels.
            env_params: Environment parameters.

        Returns:
            Levels, leaves [n, ...], their genomes, and the state to use in `tell`.
        """
        ...

    def tell(self, key: Key, genomes: Any, score: Float[Array, " n"], state: State) -> State:
        """Update the generator with the scores of its levels.

        Args:
            key: Random key.
            genomes: Genomes of the levels, as `ask` returned them.
            score: Scores, shape [n]; NaN for a level that has none.
            state: State after `ask`.

        Returns:
            The new state.
        """
        ...


@part
class SampledLevels:
    """Levels sampled from the distribution of the environment."""

    def init(self, key: Key, env: LevelEnv, n: int) -> None:
        del key, env, n
        return None

    def ask(self, key: Key, state: State, env: LevelEnv, n: int, env_params: Any) -> tuple[Level, None, State]:
        return jax.vmap(env.sample_level, (0, None))(jax.random.split(key, n), env_params), None, state

    def tell(self, key: Key, genomes: Any, score: Float[Array, " n"], state: State) -> State:
        del key, genomes, score
        return state


@part
class EvolvedLevels:
    """Levels that an evolver searches for, with their scores as fitness.

    Args:
        evolver: Evolver; its population size must be the number of levels per iteration.
        decode: Function that decodes a vector [size] into a level; None for that of the environment
            (`evorl.types.DecodableLevelEnv`).
        size: Number of entries of the vectors that `decode` takes.
    """

    evolver: Evolver = field(default_factory=OpenES)
    decode: Callable[[Float[Array, " size"]], Level] | None = None
    size: int = 0

    def init(self, key: Key, env: LevelEnv, n: int) -> State:
        given = self.evolver.population_size
        require(given == n, "population_size", given, f"must be the number of levels per iteration, {n}")
        return self.evolver.init(key, jnp.zeros(self.decoder(env)[1]))

    def ask(self, key: Key, state: State, env: LevelEnv, n: int, env_params: Any) -> tuple[Level, Any, State]:
        del n, env_params
        genomes, state = self.evolver.ask(key, state)
        points = jax.vmap(self.evolver.to_params, (None, 0))(state, genomes)
        return jax.vmap(self.decoder(env)[0])(points), genomes, state

    def tell(self, key: Key, genomes: Any, score: Float[Array, " n"], state: State) -> State:
        return self.evolver.tell(key, genomes, score, state)[0]

    def decoder(self, env: LevelEnv) -> tuple[Callable[[Float[Array, " size"]], Level], int]:
        """Return the function that decodes a vector into a level, and the number of entries of the vector.

        Args:
            env: Environment whose levels are generated.

        Raises:
            OptionError: If neither `decode` nor the environment defines it.
        """
        if self.decode is not None:
            return self.decode, self.size
        if not isinstance(env, DecodableLevelEnv):
            name = type(env).__name__
            raise OptionError(
                f"decode=null: {name} does not implement evorl.types.DecodableLevelEnv; give decode and size"
            )
        return env.level_from_genome, env.genome_size


@struct.dataclass
class BredLevelsState:
    """Levels of the last generation, and their scores."""

    levels: Level  # leaves [n, ...]
    score: Float[Array, " n"]  # -inf without a score


@part
class BredLevels:
    """Genetic algorithm whose genomes are levels: elites, and children of the winners of tournaments.

    Elites are scored again in each generation, since the student has changed. A child of two parents is made
    by the crossover of the environment. Every child is then mutated by num_edits edits.

    Args:
        elites: Number of levels with the highest scores that survive unchanged.
        num_edits: Number of edits of a mutation.
    """

    elites: int = 4
    num_edits: int = 5
    crossover_rate: Number = number(0.5, 0.0, 1.0, "fraction of the children that have two parents", Uniform(0.0, 1.0))
    tournament: Number = number(
        2, 1, 64, "number of random levels in a tournament, the best of which becomes a parent", Integer(2, 8)
    )

    def __post_init__(self) -> None:
        require_int("elites", self.elites, 0)
        require_int("num_edits", self.num_edits, 0)

    def init(self, key: Key, env: LevelEnv, n: int) -> BredLevelsState:
        require(self.elites < n, "elites", self.elites, f"must be below the number of levels per iteration, {n}")
        if not isinstance(env, LevelCrossoverEnv):
            raise OptionError(
                f"generator=BredLevels: {type(env).__name__} does not implement evorl.types.LevelCrossoverEnv"
            )
        levels = jax.vmap(env.sample_level, (0, None))(jax.random.split(key, n), as_arrays(env.default_params))
        return BredLevelsState(levels, jnp.full(n, -jnp.inf, jnp.float32))

    def ask(
        self,
        key: Key,
        state: BredLevelsState,
        env: LevelEnv,
        n: int,
        env_params: Any,
    ) -> tuple[Level, Level, BredLevelsState]:
        del env_params
        assert isinstance(env, LevelCrossoverEnv)
        key_parents, key_both, key_cross, key_edit = jax.random.split(key, 4)
        count, best_first = n - self.elites, jnp.argsort(-state.score)
        rank = self._sample_tournament_winners(key_parents, count, n, self.tournament)
        a, b = (tree.index(state.levels, best_first[ranks]) for ranks in rank)
        crossed = jax.vmap(env.crossover_levels)(jax.random.split(key_cross, count), a, b)
        of_two = jax.random.bernoulli(key_both, self.crossover_rate, (count,))
        child = tree.select(of_two, crossed, a)
        mutate = jax.vmap(partial(env.mutate_level, num_edits=self.num_edits))
        children = mutate(jax.random.split(key_edit, count), child)
        elites = tree.index(state.levels, best_first[: self.elites])
        levels = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), elites, children)
        return levels, levels, state

    def tell(
        self,
        key: Key,
        genomes: Level,
        score: Float[Array, " n"],
        state: BredLevelsState,
    ) -> BredLevelsState:
        del key, state
        return BredLevelsState(genomes, jnp.where(jnp.isnan(score), -jnp.inf, score))

    def _sample_tournament_winners(self, key: Key, count: int, n: int, tournament: Any) -> Int[Array, "2 count"]:
        """Sample the best of `tournament` uniform ranks, by the inverse of the distribution of their minimum."""
        u = jax.random.uniform(key, (2, count))
        return jnp.minimum((n * (1 - u ** (1 / tournament))).astype(jnp.int32), n - 1)


SAMPLED_LEVELS = SampledLevels()
