"""What evolvers of several objectives have in common, as methods: what they are told, and how parents have children."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Array, Float

from evorl import tree
from evorl.ec import objectives
from evorl.ec.flatten import leaf_indices, unflatten_population
from evorl.ec.variation import create_paired_offspring, limit_operator
from evorl.types import Bound, Key, Params


def with_bounds(self: Any, low: Bound, high: Bound, num_objectives: int) -> Any:
    """The evolver whose variation keeps the bounds, of the objectives of a problem."""
    parts = {
        "crossover": limit_operator(self.crossover, low, high),
        "mutation": limit_operator(self.mutation, low, high),
    }
    return replace(self, objectives=objectives.resolve_objectives(self.objectives, num_objectives), **parts)


def compute_objective_fitness(self: Any, means: dict[str, Array]) -> Float[Array, "n m"]:
    """What its objectives weigh."""
    return objectives.compute_objectives(self.objectives, means)


def ask_children(self: Any, key: Key, state: Any) -> tuple[Params, Any]:
    """Members as parameters, leaves [n, ...]: the children that tell has made."""
    del self, key
    return state.children, state


def create_children(self: Any, keys: Sequence[Key], parents: Float[Array, "even size"], like: Params) -> Params:
    """Of each pair of parents both, leaves [n, ...], as members like another one."""
    first, second, third = keys
    made = create_paired_offspring((first, second, third), parents, self, leaf_indices(like))
    return unflatten_population(made[: self.population_size], like)


def solution(self: Any, state: Any) -> Params:
    """The best of the first objective."""
    del self
    return tree.index(state.parents, state.fitness[:, 0].argmax())
