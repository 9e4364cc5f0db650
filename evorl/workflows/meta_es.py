"""Evolution of the hyperparameters of any workflow."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import metrics as metrics_of
from evorl import tree
from evorl.ec.cem import CEMHyperparams
from evorl.ec.shaping import comparable
from evorl.errors import require
from evorl.hyperparameters import as_state, default
from evorl.population.search import Space
from evorl.types import Evolver, Key, Metrics, Population
from evorl.workflows import base
from evorl.workflows.members import train_and_evaluate


@struct.dataclass
class MetaESHyperparams:
    """The hyperparameters of the evolver."""

    evolver: Any = default(CEMHyperparams)


@struct.dataclass
class MetaESState:
    hyperparams: MetaESHyperparams
    env_params: Any
    evolver: Any
    generation: Any  # [] int32


@dataclass(frozen=True)
class MetaES:
    """Each member of a generation is a short training run from scratch, whose return is the fitness of its settings.

    These are a point in the unit cube of the space (see PBT): the evolver begins in its middle, a GA with points from
    all of it, and what it asks for is clipped to it. An evaluation trains all members with the evolver's center, and
    its return is their mean: what the hyperparameters found are worth, not the luckiest run.
    """

    population: Population
    space: Any
    evolver: Evolver
    lifetime: int = 16  # steps of each run

    def __post_init__(self) -> None:
        base.check_positive(self, "lifetime")
        n, size = self.evolver.population_size, self.population.size
        require(n == size, "evolver.population_size", n, f"must be the size of the population, {size}")
        Space(self.space)

    @property
    def searched(self) -> Space:
        """The numbers that are searched, as points of a cube."""
        return Space(self.space)

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that a generation takes, where the inner workflow says so."""
        return base.work(self.population, self.lifetime)

    def init(self, key: Key, hyperparams: MetaESHyperparams, env_params: Any = None) -> MetaESState:
        hyperparams = as_state(hyperparams)
        size = self.searched.size
        middle, draw = jnp.full(size, 0.5, jnp.float32), lambda key: jax.random.uniform(key, (size,))
        evolver = base.begin(self.evolver, key, middle, draw, hyperparams.evolver)
        return MetaESState(hyperparams, as_state(env_params), evolver, jnp.int32(0))

    def step(self, state: MetaESState, key: Key) -> tuple[MetaESState, Metrics]:
        return self.advance(state, key, False)[:2]

    def evaluate(self, state: MetaESState, key: Key) -> Metrics:
        return self.advance(state, key, True)[2]

    def advance(self, state: MetaESState, key: Key, evaluating: bool | Array) -> tuple[MetaESState, Metrics, Metrics]:
        """A generation of lives; or lives with the center's hyperparameters, which leave the state alone."""
        key_ask, key_birth, key_life, key_tell = jax.random.split(key, 4)
        evaluating, space, hyperparams = jnp.asarray(evaluating), self.searched, state.hyperparams.evolver
        genomes, evolver = self.evolver.ask(key_ask, state.evolver, hyperparams)
        points = jax.vmap(self.evolver.to_params, (None, 0, None))(evolver, genomes, hyperparams)
        center = jnp.broadcast_to(self.evolver.solution(state.evolver), points.shape)
        points = jnp.clip(jnp.where(evaluating, center, points), 0, 1)

        members = self.population.init(key_birth, space.decode(points), state.env_params)
        members, trained, evaluation = train_and_evaluate(
            self.population, members, key_life, jnp.int32(self.lifetime), jnp.int32(1)
        )
        fitness = jnp.where(self.population.has_no_nan(members), evaluation["return"], jnp.nan)
        told, told_metrics = self.evolver.tell(key_tell, genomes, fitness, evolver, hyperparams)

        metrics = metrics_of.over_members(trained) | told_metrics | {"return_best": comparable(fitness).max()}
        metrics |= {"members/fitness": fitness}
        metrics |= {f"members/{name}": values for name, values in space.numbers(points).items()}
        evaluation = metrics_of.over_members(evaluation) | {"members/return": evaluation["return"]}
        state = replace(
            state, evolver=tree.where(evaluating, state.evolver, told), generation=state.generation + ~evaluating
        )
        return state, metrics, evaluation

    def inherit(self, state: MetaESState, parent: MetaESState) -> MetaESState:
        """state with the distribution and the hyperparameters of parent."""
        return replace(state, evolver=parent.evolver, hyperparams=parent.hyperparams)
