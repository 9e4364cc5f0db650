"""What evolvers of several objectives have in common: what they are told, and how parents have children."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Array, Float

from evorl import tree
from evorl.ec import objectives
from evorl.ec.flatten import leaf_indices, unflatten_population
from evorl.ec.variation import create_paired_offspring, limit_operator
from evorl.types import Bound, Evolver, Key, Params


class MultiObjectiveEvolver(Evolver):
    """The base of evolvers of several objectives, which have a crossover, a mutation and a state with parents."""

    takes_objectives = True

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> Any:
        """Return the evolver whose variation keeps the bounds, of the objectives of a problem."""
        this: Any = self
        parts = {name: limit_operator(getattr(this, name), low, high) for name in ("crossover", "mutation")}
        return replace(this, objectives=objectives.resolve_objectives(this.objectives, num_objectives), **parts)

    def compute_fitness(self, means: dict[str, Array]) -> Float[Array, "n m"]:
        """Return what its objectives weigh."""
        return objectives.compute_objectives(self.objectives, means)

    def ask(self, key: Key, state: Any) -> tuple[Params, Any]:
        """Return members as parameters, leaves [n, ...]: the children that tell has made."""
        del key
        return state.children, state

    def solution(self, state: Any) -> Params:
        """Return the best of the first objective."""
        return tree.index(state.parents, state.fitness[:, 0].argmax())

    def create_children(self, keys: Sequence[Key], parents: Float[Array, "even size"], like: Params) -> Params:
        """Return of each pair of parents both children, leaves [n, ...], as members like another one."""
        first, second, third = keys
        made = create_paired_offspring((first, second, third), parents, self, leaf_indices(like))
        return unflatten_population(made[: self.population_size], like)
