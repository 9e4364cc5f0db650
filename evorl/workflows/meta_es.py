"""Evolution of the hyperparameters of any workflow."""

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import metrics as metrics_of
from evorl import tree
from evorl.bounds import UNIT_CUBE
from evorl.ec import search
from evorl.errors import require
from evorl.parts import bind, part, resolve_numbers
from evorl.population.search import PriorSpace
from evorl.tree import as_arrays
from evorl.types import Evolver, Key, Metrics, Numbers, Population, State
from evorl.workflows import base
from evorl.workflows.members import PopulationMetrics, init_members, train_and_evaluate


@struct.dataclass
class MetaESState:
    numbers: Numbers
    env_params: PyTree
    evolver: State
    generation: Int[Array, ""]
    env_steps: Float[Array, ""]  # total of all runs so far


@part
class MetaES(base.BaseStagedWorkflow):
    """Evolution of hyperparameters: each individual is a short training run from scratch.

    The return of the run is the fitness of its hyperparameters. They are a point in the unit cube of the
    search space (see `PBT`). The evolver searches an unbounded space, which `BoundTransform` maps into the
    cube. It starts in the middle of the cube; an evolver that begins with members, such as GA, starts with
    points from the whole cube.

    An evaluation trains all members with the hyperparameters at the center of the evolver, and its return is
    their mean. It therefore measures the hyperparameters and not the luckiest run.

    Args:
        population: Population of runs; its size must be the population size of the evolver.
        evolver: Evolver that searches the hyperparameters.
        lifetime: Number of training steps of each run.
        search: Names of the searched hyperparameters, as in PBT.
    """

    population: Population
    evolver: Evolver
    lifetime: int = 16
    search: tuple[str, ...] = ()

    inherited: ClassVar[tuple[str, ...]] = ("evolver",)
    is_sharded_by_default: ClassVar[bool] = True

    @property
    def independent_axes(self) -> dict[str, int]:
        """Return the number of members of the population, if they are independent, by mesh axis."""
        return base.independent_axes(self.population)

    def __post_init__(self) -> None:
        base.check_positive(self, "lifetime")
        search.require_evolver(self.evolver)
        search.require_no_descriptors(self.evolver)
        n, size = self.evolver.population_size, self.population.size
        require(n == size, "evolver.population_size", n, f"must be the size of the population, {size}")
        self.search_space  # noqa: B018  raises OptionError if the search space is invalid

    @property
    def search_space(self) -> PriorSpace:
        """Return the search space, which maps points of the unit cube to hyperparameters."""
        return PriorSpace(self.population.inner, self.search)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum cost of a generation by name; empty if `inner` reports none."""
        found = base.total_iteration_cost(self.population, self.lifetime)
        if "env_steps" in found:  # every run starts with its first iteration, which may take more steps
            found["env_steps"] = found["env_steps"][0], int(base.max_total_env_steps(self.population, self.lifetime))
        return found

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> MetaESState:
        numbers = resolve_numbers(self, numbers)
        size = self.search_space.size
        middle, draw = jnp.full(size, 0.5, jnp.float32), lambda key: UNIT_CUBE.unfold(jax.random.uniform(key, (size,)))
        evolver = search.init_evolver_state(bind(self, numbers).evolver, key, middle, draw)
        return MetaESState(numbers, as_arrays(env_params), evolver, jnp.int32(0), jnp.float32(0))

    def plan(self, state: MetaESState, key: Key) -> tuple[Array, tuple[Any, Any]]:
        """Return the points that the evolver asks for, [size, d]."""
        genomes, evolver = self.evolver.ask(key, state.evolver)
        return UNIT_CUBE.fold_array(jax.vmap(self.evolver.to_params, (None, 0))(evolver, genomes)), (genomes, evolver)

    def plan_evaluation(self, state: MetaESState, key: Key) -> Array:
        """Return the center of the evolver as the point of all members, [size, d]."""
        del key
        return tree.broadcast(UNIT_CUBE.fold(self.evolver.solution(state.evolver)), self.population.size)

    def rollout(self, state: MetaESState, plan: Array, key: Key) -> tuple[MetaESState, PopulationMetrics]:
        """Train members from scratch with the hyperparameters at the points, and evaluate them."""
        key_init, key_train = jax.random.split(key)
        members = init_members(self.population, key_init, self.search_space.decode(plan), state.env_params)
        members, *results = train_and_evaluate(
            self.population, members, key_train, jnp.int32(self.lifetime), jnp.int32(1)
        )
        return state, PopulationMetrics(
            self.search_space.decode_by_name(plan), self.population.has_no_nan(members), *results
        )

    def learn_from(
        self, state: MetaESState, carry: tuple[Any, Any], played: PopulationMetrics, key: Key
    ) -> tuple[MetaESState, Metrics]:
        genomes, evolver = carry
        fitness = self.evolver.compute_fitness({"return": played.fitness})
        evolver, evolver_metrics = self.evolver.tell(key, genomes, fitness, evolver)
        metrics = played.metrics() | evolver_metrics
        env_steps = state.env_steps + metrics["env_steps"]
        return replace(state, evolver=evolver, generation=state.generation + 1, env_steps=env_steps), metrics

    def evaluation_metrics(self, state: MetaESState, played: PopulationMetrics) -> Metrics:
        """Return the means over all members, with the standard error of the return between members."""
        del state
        returns = played.evaluation["return"]
        others = (~jnp.isnan(returns)).sum() - 1
        error = jnp.where(others > 0, jnp.sqrt(jnp.nanvar(returns) / jnp.maximum(others, 1)), jnp.inf)
        between = {metrics_of.RETURN_ERROR: error, metrics_of.RETURN_DOF: jnp.maximum(others, 0)}
        whole = metrics_of.reduce_members(played.evaluation) | between | {"members/return": returns}
        no_episode = {
            name: jnp.where(others < 0, jnp.nan, x) for name, x in whole.items() if metrics_of.is_episode_mean(name)
        }
        return played.count_steps_in(whole | no_episode)
