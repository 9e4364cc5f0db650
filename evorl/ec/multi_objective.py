"""Base class of multi-objective evolvers."""

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
    """Base class of multi-objective evolvers.

    A subclass has the fields population_size, crossover and mutation. Its state has the fields parents,
    fitness and children.
    """

    takes_objectives = True

    def with_bounds(self, low: Bound, high: Bound, num_objectives: int) -> Any:
        """Return the evolver with these bounds in its crossover and mutation.

        If it has no objectives, it gets all objectives of the problem.
        """
        this: Any = self
        parts = {name: limit_operator(getattr(this, name), low, high) for name in ("crossover", "mutation")}
        return replace(this, objectives=objectives.resolve_objectives(this.objectives, num_objectives), **parts)

    def compute_fitness(self, means: dict[str, Array]) -> Float[Array, "n m"]:
        """Return the weighted objectives, shape [n, m]."""
        return objectives.compute_objectives(self.objectives, means)

    def ask(self, key: Key, state: Any) -> tuple[Params, Any]:
        """Return the offspring that `tell` created, as parameters, leaves [n, ...]."""
        del key
        return state.children, state

    def solution(self, state: Any) -> Params:
        """Return the parent that is the best in the first objective."""
        return tree.index(state.parents, state.fitness[:, 0].argmax())

    def create_children(self, keys: Sequence[Key], parents: Float[Array, "even size"], like: Params) -> Params:
        """Create two children for each pair of parents and return the first population_size, leaves [n, ...].

        Args:
            keys: Random keys for crossover, for mutation, and for the choice of the children that they apply
                to.
            parents: Flattened parents, shape [even, size]; the first half is paired with the second half.
            like: Parameters whose structure the children have.
        """
        first, second, third = keys
        made = create_paired_offspring((first, second, third), parents, self, leaf_indices(like))
        return unflatten_population(made[: self.population_size], like)
