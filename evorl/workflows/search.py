"""Evolution on a function, without an environment."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import hyperparameters, tree
from evorl.bounds import Box
from evorl.ec import search
from evorl.ec.nsga2 import NSGA2Hyperparams
from evorl.errors import require
from evorl.hyperparameters import as_state, default
from evorl.types import Evolver, Fits, Found, Judges, Key, Metrics, Params, Problem, Quality
from evorl.workflows import base


@struct.dataclass
class SearchHyperparams:
    """The hyperparameters of the evolver."""

    evolver: Any = default(NSGA2Hyperparams)


@struct.dataclass
class SearchState:
    hyperparams: SearchHyperparams
    env_params: Any  # (), as there is no environment
    evolver: Any
    env_steps: Any  # [] float32, evaluations so far


@struct.dataclass
class Evaluated:
    """Parameters, leaves [n, ...], and what they are worth."""

    params: Any
    means: Any  # "return", [n] or [n, objectives], and "descriptor", [n, descriptors], where the problem has one


@dataclass(frozen=True)
class Search:
    """An iteration is ask, one evaluation of each member, and tell; an evaluation is of the solution.

    An evaluation of the problem counts as an episode of one step, its fitness as the return: of several objectives the
    first. First members are drawn by the problem. An evolver of a bounded problem searches a space without bounds that
    `Box` maps into them; one that `Fits` keeps them itself: what it asks for is clipped, and it is told of that.
    With same_episodes, all members of a generation have the same chance (common random numbers), else each its own.
    """

    problem: Problem
    evolver: Evolver
    same_episodes: bool = True

    def __post_init__(self) -> None:
        name, several = type(self.evolver).__name__, self.num_objectives > 1
        why = f"takes one number, and {type(self.problem).__name__} has {self.num_objectives}; nsga2 takes several"
        require(not several or isinstance(self.evolver, Judges), "evolver", name, why)

    def hyperparams(self) -> SearchHyperparams:
        return SearchHyperparams(hyperparameters.of(self.evolver))

    @cached_property
    def num_objectives(self) -> int:
        """Of the problem's fitness."""
        key = jax.random.key(0)
        fitness = jax.eval_shape(lambda: self._means(self.problem.evaluate(key, self.problem.init(key))))["return"]
        vector = "must have a fitness [] or [objectives]"
        require(len(fitness.shape) < 2, "problem", type(self.problem).__name__, vector)
        return fitness.size

    @cached_property
    def fitted(self) -> Evolver:
        """The evolver, which knows the problem where it wants to."""
        low, high = self.problem.bounds
        return self.evolver.fitted(low, high, self.num_objectives) if isinstance(self.evolver, Fits) else self.evolver

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """What an iteration takes."""
        n = self.evolver.population_size
        return {"env_steps": (n, n), "gradient_steps": (0, 0)}

    def init(self, key: Key, hyperparams: SearchHyperparams, env_params: Any = None) -> SearchState:
        key_mean, key_evolver = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        draw = lambda key: self._point(self.problem.init(key))  # noqa: E731
        evolver = search.begin(self.fitted, key_evolver, draw(key_mean), draw, hyperparams.evolver)
        return SearchState(hyperparams, as_state(() if env_params is None else env_params), evolver, jnp.float32(0))

    def step(self, state: SearchState, key: Key) -> tuple[SearchState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: SearchState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def plan(self, state: SearchState, key: Key) -> tuple[Params, tuple[Any, Any]]:
        """The members that are asked for, leaves [n, ...], and what tell takes beside their fitness."""
        members, genomes, evolver = search.ask(self.fitted, key, state.evolver, self.now(state).evolver)
        inside = jax.vmap(self._inside)(members)
        told = inside if isinstance(self.fitted, Fits) else members
        return inside, (genomes if jax.tree.leaves(genomes) else told, evolver)

    def exam(self, state: SearchState, key: Key) -> Params:
        """The solution alone, leaves [1, ...]."""
        del key
        return tree.broadcast(self._inside(self.fitted.solution(state.evolver)), 1)

    def play(self, state: SearchState, plan: Params, key: Key) -> tuple[SearchState, Evaluated]:
        keys, axis = (key, None) if self.same_episodes else (jax.random.split(key, tree.size(plan)), 0)
        fitness = jax.vmap(self.problem.evaluate, (axis, 0))(keys, plan)
        return state, Evaluated(plan, self._means(fitness))

    def absorb(
        self, state: SearchState, carry: tuple[Any, Any], played: Evaluated, key: Key
    ) -> tuple[SearchState, Metrics]:
        (asked, evolver), n = carry, self.evolver.population_size
        fitness, evolver = search.fitness(self.fitted, played.means), search.asked(evolver, state.evolver)
        evolver, told = search.tell(self.fitted, key, asked, fitness, evolver, self.now(state).evolver)
        values = self._first(played)
        counts = {"env_steps": jnp.int32(n), "episodes": jnp.int32(n), "gradient_steps": jnp.int32(0)}
        found = {"return": jnp.nanmean(values), "return_best": jnp.nanmax(values), "episode_length": jnp.float32(1)}
        return replace(state, evolver=evolver, env_steps=state.env_steps + n), counts | found | told

    def report(self, state: SearchState, played: Evaluated) -> Metrics:
        del state
        of_solution = {"return": self._first(played)[0], "return_error": jnp.float32(0)}
        return of_solution | {"episodes": jnp.int32(1), "episode_length": jnp.float32(1)}

    def now(self, state: SearchState) -> SearchHyperparams:
        """The hyperparameters as they are by this iteration."""
        return hyperparameters.at(state.hyperparams, state.env_steps)

    def found(self, state: SearchState) -> Found:
        """The evolver's, where it collects, or else the solution alone."""
        if (found := search.found(self.fitted, state.evolver)) is not None:
            return replace(found, params=jax.vmap(self._inside)(found.params))
        solution = self.exam(state, jax.random.key(0))
        played = self.play(state, solution, jax.random.key(0))[1]
        return Found(solution, self._first(played), jnp.ones(1, bool))

    def inherit(self, state: SearchState, parent: SearchState) -> SearchState:
        """state with the evolver and the hyperparameters of parent."""
        return replace(state, evolver=parent.evolver, hyperparams=parent.hyperparams)

    def _means(self, fitness: Any) -> dict[str, Array]:
        if isinstance(fitness, Quality):
            return {"return": jnp.asarray(fitness.fitness), "descriptor": fitness.descriptor}
        return {"return": jnp.asarray(fitness)}

    def _first(self, played: Evaluated) -> Array:
        """The first objective [n]."""
        return played.means["return"].reshape(tree.size(played.params), -1)[:, 0]

    @cached_property
    def _box(self) -> Box:
        return Box(*self.problem.bounds)

    def _inside(self, params: Params) -> Params:
        """What is evaluated where an evolver asks for params."""
        if not self._box.finite:
            return params
        return self._box.clip(params) if isinstance(self.fitted, Fits) else self._box.fold(params)

    def _point(self, params: Params) -> Params:
        """Where an evolver searches for params."""
        return params if isinstance(self.fitted, Fits) or not self._box.finite else self._box.unfold(params)
