"""Variation: how the hyperparameters of those that took over from a parent move, in the unit cube of a search space."""

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
    """Whose points are to move."""

    u: Points
    fitness: Float[Array, " n"]
    source: Int[Array, " n"]  # of each the parent, itself where it lives on
    e_folds: Float[Array, " d"]  # of the priors, 0 where linear


@runtime_checkable
class Variation(Protocol):
    """Moves the points of the children, those whose source is not themselves; the others stay where they are."""

    def check(self, size: int) -> None:
        """Raises OptionError where it cannot serve a population of this size."""
        ...

    def init(self, key: Key, u: Points) -> Any:
        """What it remembers from one generation to the next."""
        ...

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        """Points before they are mirrored at the sides of the cube, and its memory."""
        ...


@part
class Perturb:
    """Each number of a child is its parent's, one step up or down (Jaderberg et al. 2017, arXiv:1711.09846).

    A step is symmetric in the prior's own units, so that numbers do not drift where selection is random: with a linear
    prior factor times its range is added or taken away, with a logarithmic one the number is multiplied with or divided
    by 1 + factor. The paper multiplies with 1 + factor or 1 - factor, which on average is less than no change. With
    OneMinus it is what is taken from 1 that grows or shrinks. Default: section 4.1.1 of the paper.
    """

    factor: Number = number(
        0.2, 0, 1, "by which a number grows or shrinks; of a linear prior, of its range", LogUniform(0.05, 0.8)
    )

    def check(self, size: int) -> None:
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
    """Some numbers of a child are drawn anew from their priors, the others are its parent's (arXiv:1711.09846).

    Default: about as often as in the paper, where it is told.
    """

    rate: Number = number(0.25, 0, 1, "of the numbers of a child, those that are drawn anew", LogUniform(0.05, 1))

    def check(self, size: int) -> None:
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
    """A child flies from where it was towards its parent, with a velocity of its own; in pairs, CSO.

    Source: arXiv:2501.15129, section 5.2.3; Bai & Cheng 2024; Cheng & Jin 2015, doi:10.1109/TCYB.2014.2322602.
    """

    inertia: Number = number(1.0, 0, about="weight of the velocity so far", prior=Uniform(0, 1))
    pull: Number = number(1.0, 0, about="weight of the way to the parent", prior=Uniform(0, 2))

    def check(self, size: int) -> None:
        del size

    def init(self, key: Key, u: Points) -> Points:
        del key
        return jnp.zeros_like(u)

    def __call__(self, key: Key, generation: Generation, memory: Points) -> tuple[Points, Points]:
        """velocity <- inertia r1 velocity + pull r2 (parent - child), with r1 and r2 in [0, 1) each number's own."""
        u, source = generation.u, generation.source
        r1, r2 = jax.random.uniform(key, (2, *u.shape))
        velocity = self.inertia * r1 * memory + self.pull * r2 * (u[source] - u)
        child = child_mask(source)
        return jnp.where(child, u + velocity, u), jnp.where(child, velocity, memory)


@part
class EvolverVariation:
    """Children take the points that an evolver asks for, such as Evosax(DifferentialEvolution, population_size=n).

    It is told the points of all members and their fitness, and searches a space without bounds that `BoundTransform`
    maps into the cube.
    """

    evolver: Evolver = field(default_factory=CEM)

    def check(self, size: int) -> None:
        search.require_takes_params(self.evolver, "variation.evolver", "members that did not take what it asked for")
        n = self.evolver.population_size
        require(n == size, "variation.evolver.population_size", n, f"must be the size of the population, {size}")

    def init(self, key: Key, u: Points) -> Any:
        middle = jnp.full(u.shape[1:], 0.5, jnp.float32)
        return self.evolver.from_members(key, UNIT_CUBE.unfold_array(u), middle)

    def __call__(self, key: Key, generation: Generation, memory: Any) -> tuple[Points, Any]:
        key_tell, key_ask = jax.random.split(key)
        memory, _ = search.tell(
            self.evolver, key_tell, UNIT_CUBE.unfold_array(generation.u), generation.fitness, memory
        )
        asked, _, after = search.ask(self.evolver, key_ask, memory)
        return jnp.where(
            child_mask(generation.source), UNIT_CUBE.fold_array(asked), generation.u
        ), search.merge_asked_state(after, memory)


def child_mask(source: Int[Array, " n"]) -> Array:
    """Who took over from another, [n, 1]."""
    return (source != jnp.arange(len(source)))[:, None]
