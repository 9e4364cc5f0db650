"""Variation in population-based training: new hyperparameters of replaced members, as points in the unit cube."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.bounds import UNIT_CUBE
from evorl.ec import search
from evorl.ec.cem import CEM
from evorl.errors import require
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, Uniform
from evorl.types import Evolver, Key

Points = Float[Array, "n d"]


@struct.dataclass
class Generation:
    """Population whose hyperparameters are varied.

    Args:
        u: Hyperparameters as points in the unit cube of the search space, shape [n, d].
        fitness: Fitness of the members, shape [n].
        source: Index of the parent of each member, shape [n]; its own index if it was not replaced.
        e_folds: Widths of the priors in natural-log units, shape [d]; 0 for a linear prior.
    """

    u: Points
    fitness: Float[Array, " n"]
    source: Int[Array, " n"]
    e_folds: Float[Array, " d"]


@runtime_checkable
class Variation(Protocol):
    """Protocol of variation, which moves the points of children, the members that were replaced by copies of others.

    The points of all other members stay the same.
    """

    def check(self, size: int) -> None:
        """Check that the variation works for a population of this size; most accept every size.

        Args:
            size: Number of members.

        Raises:
            OptionError: If it does not, such as an evolver with another population size.
        """
        ...

    def init(self, key: Key, u: Points) -> Any:
        """Return the initial state of the variation, which it updates in each generation.

        Args:
            key: Random key.
            u: Initial points of the members, shape [n, d].

        Returns:
            The state, or None for a variation without state.
        """
        ...

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        """Return the points of the next generation.

        Args:
            key: Random key.
            generation: Points, fitness and parents of the current generation.
            memory: State of the variation.

        Returns:
            The points [n, d], and the new state. Points may lie outside of the unit cube; the caller reflects
            them at its sides.
        """
        ...


@part
class Perturb:
    """Perturbation: a child has its parent's hyperparameters, each of them one step up or down.

    Steps are symmetric in the units of the prior, so that hyperparameters do not drift under random
    selection. With a linear prior, factor times its range is added or subtracted. With a logarithmic prior,
    the value is multiplied or divided by 1 + factor. (The paper multiplies it by 1 + factor or 1 - factor,
    which makes it drift downwards.) With OneMinus, the perturbation applies to 1 - value. The default is that
    of section 4.1.1 of the paper.

    Source: Jaderberg et al. 2017, arXiv:1711.09846.
    """

    factor: Number = number(
        0.2, 0, 1, "relative step of a hyperparameter; for a linear prior, relative to its range", LogUniform(0.05, 0.8)
    )

    def check(self, size: int) -> None:
        """Accept a population of any size."""
        del size

    def init(self, key: Key, u: Points) -> None:
        del key, u
        return None

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        u, source = generation.u, generation.source
        grows = jax.random.bernoulli(key, shape=u.shape)
        linear, e_folds = generation.e_folds == 0, generation.e_folds
        step = jnp.where(linear, self.factor, jnp.log1p(self.factor) / jnp.where(linear, 1, e_folds))
        return jnp.where(child_mask(source), u[source] + jnp.where(grows, step, -step), u), memory


@part
class Resample:
    """Resampling: a child has its parent's hyperparameters, some of which are drawn again from their priors.

    The default rate is about the one in the paper, if the paper states it.

    Source: Jaderberg et al. 2017, arXiv:1711.09846.
    """

    rate: Number = number(
        0.25, 0, 1, "probability that a hyperparameter of a child is drawn again from its prior", LogUniform(0.05, 1)
    )

    def check(self, size: int) -> None:
        """Accept a population of any size."""
        del size

    def init(self, key: Key, u: Points) -> None:
        del key, u
        return None

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        u, source = generation.u, generation.source
        drawn, anew = jax.random.uniform(key, (2, *u.shape))
        return jnp.where(child_mask(source), jnp.where(drawn < self.rate, anew, u[source]), u), memory


@part
class Swarm:
    """Swarm: a child moves from its own point towards its parent's point, with a velocity.

    With the selection Pairs, this is the competitive swarm optimizer (CSO).

    Source: EvoRL, arXiv:2501.15129, section 5.2.3; Bai & Cheng 2024; Cheng & Jin 2015,
    doi:10.1109/TCYB.2014.2322602.
    """

    inertia: Number = number(1.0, 0, about="weight of the previous velocity", prior=Uniform(0, 1))
    pull: Number = number(1.0, 0, about="weight of the difference to the parent", prior=Uniform(0, 2))

    def check(self, size: int) -> None:
        """Accept a population of any size."""
        del size

    def init(self, key: Key, u: Points) -> Points:
        del key
        return jnp.zeros_like(u)

    def __call__(self, key: Key, generation: Generation, memory: Points) -> tuple[Points, Points]:
        """Move children by velocity <- inertia r1 velocity + pull r2 (parent - child).

        r1 and r2 are drawn uniformly from [0, 1) for each hyperparameter.
        """
        u, source = generation.u, generation.source
        r1, r2 = jax.random.uniform(key, (2, *u.shape))
        velocity = self.inertia * r1 * memory + self.pull * r2 * (u[source] - u)
        child = child_mask(source)
        return jnp.where(child, u + velocity, u), jnp.where(child, velocity, memory)


@part
class EvolverVariation:
    """Variation by an evolver: children take the points that it asks for.

    The evolver receives the points and the fitness of all members. It searches an unbounded space, which
    `BoundTransform` maps into the unit cube. Example: EvolverVariation(Evosax(DifferentialEvolution,
    population_size=n)).

    Args:
        evolver: Evolver whose population_size is the size of the population.
    """

    evolver: Evolver = field(default_factory=CEM)

    def check(self, size: int) -> None:
        """Raise OptionError if the evolver cannot serve this population.

        Its population_size must be the number of members, and it must accept parameters that it did not ask
        for.
        """
        search.require_learns_from_others(self.evolver, "variation.evolver", "hyperparameters that it did not propose")
        search.require_no_descriptors(self.evolver, "variation.evolver")
        n = self.evolver.population_size
        require(n == size, "variation.evolver.population_size", n, f"must be the size of the population, {size}")

    def init(self, key: Key, u: Points) -> Any:
        middle = jnp.full(u.shape[1:], 0.5, jnp.float32)
        return self.evolver.from_members(key, UNIT_CUBE.unfold_array(u), middle)

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        key_tell, key_ask = jax.random.split(key)
        fitness = self.evolver.compute_fitness({"return": generation.fitness})
        memory, _ = search.tell(self.evolver, key_tell, UNIT_CUBE.unfold_array(generation.u), fitness, memory)
        asked, _, after = search.ask(self.evolver, key_ask, memory)
        return jnp.where(
            child_mask(generation.source), UNIT_CUBE.fold_array(asked), generation.u
        ), search.merge_asked_state(after, memory)


def child_mask(source: Int[Array, " n"]) -> Array:
    """Return a mask of the members that were replaced by a copy of another one, shape [n, 1]."""
    return (source != jnp.arange(len(source)))[:, None]
