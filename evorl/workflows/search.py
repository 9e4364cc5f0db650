"""Evolution on a function, without an environment."""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.interpreters import partial_eval
from jaxtyping import Array, Float, Int, PyTree

from evorl import mesh, tree
from evorl.bounds import BoundTransform
from evorl.ec import search
from evorl.errors import require
from evorl.parts import bind, part, resolve_numbers
from evorl.tree import as_arrays
from evorl.types import (
    Evolver,
    Key,
    Metrics,
    Numbers,
    Params,
    Problem,
    QDEvaluation,
    SearchResults,
    SeedEvolver,
    State,
)
from evorl.workflows import base


@struct.dataclass
class SearchState:
    numbers: Numbers
    env_params: PyTree  # None, as there is no environment
    evolver: State
    iteration: Int[Array, ""]


@struct.dataclass
class CandidateEvaluations:
    """Parameters, leaves [n, ...], and their evaluations."""

    params: Params
    # "return", [n] or [n, objectives]; and "descriptor", [n, descriptors], if the problem has descriptors
    means: dict[str, Array]


@part
class Search(base.BaseStagedWorkflow):
    """Search of the maximum of a problem with an evolver: ask, evaluate each individual once, and tell.

    One evaluation of the problem counts as an episode of one step whose return is the fitness, or the first
    of several objectives. An evaluation of the workflow evaluates the solution. If the evolver begins with
    members, the problem samples them.

    If a problem has bounds, the evolver searches an unbounded space that `BoundTransform` maps into them. An
    evolver with `keeps_bounds` handles them itself: its individuals are clipped, and `tell` gets the clipped
    ones with their fitness.

    Args:
        problem: Problem to maximize.
        evolver: Evolver that searches.
        same_episodes: Whether all individuals of a generation are evaluated with the same random key (common
            random numbers); otherwise each has its own.
    """

    problem: Problem
    evolver: Evolver
    same_episodes: bool = True
    inherited: ClassVar[tuple[str, ...]] = ("evolver",)
    is_sharded_by_default: ClassVar[bool] = False  # most problems are evaluated faster than devices synchronize

    def __post_init__(self) -> None:
        search.require_evolver(self.evolver)
        name = type(self.evolver).__name__
        seeds = "generates policies from seeds while they act, which problems do not have; use openes or ga"
        require(not isinstance(self.evolver, SeedEvolver), "evolver", name, seeds)
        several = self.num_objectives > 1
        why = f"needs a single objective, and {type(self.problem).__name__} has {self.num_objectives}; use nsga2"
        require(not several or self.evolver.takes_objectives, "evolver", name, why)

    @cached_property
    def num_objectives(self) -> int:
        """Return the number of objectives of the problem.

        Raises:
            OptionError: If the fitness has more than one axis.
        """
        key = jax.random.key(0)
        fitness = jax.eval_shape(lambda: self._as_means(self.problem.evaluate(key, self.problem.init(key))))["return"]
        vector = "must return a fitness of shape [] or [objectives]"
        require(len(fitness.shape) < 2, "problem", type(self.problem).__name__, vector)
        return fitness.size

    @cached_property
    def is_random(self) -> bool:
        """Return whether the problem uses the random key of an evaluation."""
        key = jax.random.key(0)
        jaxpr = jax.make_jaxpr(self.problem.evaluate)(key, jax.eval_shape(self.problem.init, key)).jaxpr
        return bool(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1][0])

    @cached_property
    def evolver_with_bounds(self) -> Evolver:
        """Return the evolver adapted to the bounds and the number of objectives of the problem."""
        return self.evolver.with_bounds(*self.problem.bounds, self.num_objectives)

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of individuals, which are evaluated independently."""
        return {mesh.ENVS: self.evolver.population_size}

    independent_axes = parallel_axes

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the env steps (evaluations of the problem) and the gradient steps of an iteration, by name."""
        n = self.evolver.population_size
        return {"env_steps": (n, n), "gradient_steps": (0, 0)}

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> SearchState:
        key_mean, key_evolver = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        draw = lambda key: self._map_to_search_space(self.problem.init(key))  # noqa: E731
        bound = bind(self, numbers).evolver_with_bounds
        evolver = search.init_evolver_state(bound, key_evolver, draw(key_mean), draw)
        return SearchState(numbers, as_arrays(env_params), evolver, jnp.int32(0))

    def count_env_steps(self, state: SearchState) -> Float[Array, ""]:
        """Return the number of evaluations so far."""
        return state.iteration * jnp.float32(self.evolver.population_size)

    def plan(self, state: SearchState, key: Key) -> tuple[Params, tuple[Any, Any]]:
        """Return the individuals to evaluate, leaves [n, ...], and what `tell` takes in addition to their fitness."""
        members, genomes, evolver = search.ask(self.evolver_with_bounds, key, state.evolver)
        inside = jax.vmap(self._map_to_bounds)(members)
        taken = inside if self.evolver.keeps_bounds else members
        return inside, (genomes if jax.tree.leaves(genomes) else taken, evolver)

    def plan_evaluation(self, state: SearchState, key: Key) -> Params:
        """Return the solution as the only individual, leaves [1, ...]."""
        del key
        return tree.broadcast(self._map_to_bounds(self.evolver_with_bounds.solution(state.evolver)), 1)

    def rollout(self, state: SearchState, plan: Params, key: Key) -> tuple[SearchState, CandidateEvaluations]:
        n = tree.leading_size(plan)
        keys, axis = (key, None) if self.same_episodes else (jax.random.split(key, n), 0)
        evaluate = jax.vmap(self.problem.evaluate, (axis, 0))
        evaluate = mesh.shard_over_axis(evaluate, mesh.ENVS, (axis == 0, True), True, n)
        return state, CandidateEvaluations(plan, self._as_means(evaluate(keys, plan)))

    def learn_from(
        self, state: SearchState, carry: tuple[Any, Any], played: CandidateEvaluations, key: Key
    ) -> tuple[SearchState, Metrics]:
        (individuals, asked), n = carry, self.evolver.population_size
        evolver, metrics = search.tell_means(
            self.evolver_with_bounds, key, individuals, played.means, asked, state.evolver
        )
        values = self._primary_objective(played)
        counts = {"env_steps": jnp.int32(n), "episodes": jnp.int32(n), "gradient_steps": jnp.int32(0)}
        found = {"return": jnp.nanmean(values), "return_best": jnp.nanmax(values), "episode_length": jnp.float32(1)}
        return replace(state, evolver=evolver, iteration=state.iteration + 1), counts | found | metrics

    def evaluation_metrics(self, state: SearchState, played: CandidateEvaluations) -> Metrics:
        del state
        error = jnp.float32(jnp.inf if self.is_random else 0)  # one value of a random problem has no known error
        of_solution = {"return": self._primary_objective(played)[0], "return_error": error}
        return of_solution | {"episodes": jnp.int32(1), "episode_length": jnp.float32(1)}

    def results(self, state: SearchState) -> SearchResults:
        """Return the solutions of the evolver if it keeps many, or else the solution alone."""
        if (found := self.evolver_with_bounds.results(state.evolver)) is not None:
            return replace(found, params=jax.vmap(self._map_to_bounds)(found.params))
        solution = self.plan_evaluation(state, jax.random.key(0))
        played = self.rollout(state, solution, jax.random.key(0))[1]
        return SearchResults(solution, self._primary_objective(played), jnp.ones(1, bool))

    def _as_means(self, fitness: Any) -> dict[str, Array]:
        if isinstance(fitness, QDEvaluation):
            return {"return": jnp.asarray(fitness.fitness), "descriptor": fitness.descriptor}
        return {"return": jnp.asarray(fitness)}

    def _primary_objective(self, played: CandidateEvaluations) -> Array:
        """Return the first objective of each individual, [n]."""
        return played.means["return"].reshape(tree.leading_size(played.params), -1)[:, 0]

    @cached_property
    def _box(self) -> BoundTransform:
        return BoundTransform(*self.problem.bounds)

    def _map_to_bounds(self, params: Params) -> Params:
        """Map parameters that the evolver asked for to parameters within the bounds, which are evaluated."""
        if not self._box.is_bounded:
            return params
        return self._box.clip(params) if self.evolver.keeps_bounds else self._box.fold(params)

    def _map_to_search_space(self, params: Params) -> Params:
        """Map parameters within the bounds to the space in which the evolver searches."""
        inside = self.evolver.keeps_bounds or not self._box.is_bounded
        return params if inside else self._box.unfold(params)
