"""Variation: how the hyperparameters of those that took over from a parent move, in the unit cube of a search space."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import hyperparameters
from evorl.bounds import UNIT_CUBE
from evorl.ec import search
from evorl.errors import require
from evorl.hyperparameters import Number, hyperparameter
from evorl.parts import bind
from evorl.priors import LogUniform, Uniform
from evorl.types import Evolver, Hyperparams, Key, MemberInitEvolver

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

    @property
    def hyperparams_class(self) -> type:
        """The class of its hyperparameters."""
        ...

    def check(self, size: int) -> None:
        """Raises OptionError where it cannot serve a population of this size."""
        ...

    def init(self, key: Key, u: Points, hyperparams: Hyperparams) -> Any:
        """What it remembers from one generation to the next."""
        ...

    def __call__(self, key: Key, generation: Generation, memory: Any, hyperparams: Hyperparams) -> tuple[Points, Any]:
        """Points before they are mirrored at the sides of the cube, and its memory."""
        ...


@struct.dataclass
class PerturbHyperparams:
    """Default: Jaderberg et al. 2017, section 4.1.1; table 5 of EvoRL (arXiv:2501.15129)."""

    factor: Number = hyperparameter(
        0.2, 0, 1, "by which a number grows or shrinks; of a linear prior, of its range", LogUniform(0.05, 0.8)
    )


@dataclass(frozen=True)
class Perturb:
    """Each number of a child is its parent's, one step up or down (Jaderberg et al. 2017, arXiv:1711.09846).

    A step is symmetric in the prior's own units, so that numbers do not drift where selection is random: with a linear
    prior factor times its range is added or taken away, with a logarithmic one the number is multiplied with or divided
    by 1 + factor. The paper multiplies with 1 + factor or 1 - factor, which on average is less than no change. With
    OneMinus it is what is taken from 1 that grows or shrinks.
    """

    hyperparams_class = PerturbHyperparams

    def hyperparams(self) -> PerturbHyperparams:
        return PerturbHyperparams()

    def check(self, size: int) -> None:
        del size

    def init(self, key: Key, u: Points, hyperparams: PerturbHyperparams) -> tuple[()]:
        del key, u, hyperparams
        return ()

    def __call__(self, key: Key, generation: Generation, memory: Any, hyperparams: Any) -> tuple[Points, Any]:
        u, source = generation.u, generation.source
        grows = jax.random.bernoulli(key, shape=u.shape)
        linear, e_folds = generation.e_folds == 0, generation.e_folds
        step = jnp.where(linear, hyperparams.factor, jnp.log1p(hyperparams.factor) / jnp.where(linear, 1, e_folds))
        return jnp.where(child_mask(source), u[source] + jnp.where(grows, step, -step), u), memory


@struct.dataclass
class ResampleHyperparams:
    """Default: about as often as in Jaderberg et al. 2017, where it is told."""

    rate: Number = hyperparameter(
        0.25, 0, 1, "of the numbers of a child, those that are drawn anew", LogUniform(0.05, 1)
    )


@dataclass(frozen=True)
class Resample:
    """Some numbers of a child are drawn anew from their priors, the others are its parent's (arXiv:1711.09846)."""

    hyperparams_class = ResampleHyperparams

    def hyperparams(self) -> ResampleHyperparams:
        return ResampleHyperparams()

    def check(self, size: int) -> None:
        del size

    def init(self, key: Key, u: Points, hyperparams: ResampleHyperparams) -> tuple[()]:
        del key, u, hyperparams
        return ()

    def __call__(self, key: Key, generation: Generation, memory: Any, hyperparams: Any) -> tuple[Points, Any]:
        u, source = generation.u, generation.source
        drawn, anew = jax.random.uniform(key, (2, *u.shape))
        return jnp.where(child_mask(source), jnp.where(drawn < hyperparams.rate, anew, u[source]), u), memory


@struct.dataclass
class SwarmHyperparams:
    """Defaults: the equations of section 5.2.3 of EvoRL (arXiv:2501.15129)."""

    inertia: Number = hyperparameter(1.0, 0, about="weight of the velocity so far", prior=Uniform(0, 1))
    pull: Number = hyperparameter(1.0, 0, about="weight of the way to the parent", prior=Uniform(0, 2))


@dataclass(frozen=True)
class Swarm:
    """A child flies from where it was towards its parent, with a velocity of its own; in pairs, CSO.

    Source: arXiv:2501.15129, section 5.2.3; Bai & Cheng 2024; Cheng & Jin 2015, doi:10.1109/TCYB.2014.2322602.
    """

    hyperparams_class = SwarmHyperparams

    def hyperparams(self) -> SwarmHyperparams:
        return SwarmHyperparams()

    def check(self, size: int) -> None:
        del size

    def init(self, key: Key, u: Points, hyperparams: SwarmHyperparams) -> Points:
        del key, hyperparams
        return jnp.zeros_like(u)

    def __call__(self, key: Key, generation: Generation, memory: Points, hyperparams: Any) -> tuple[Points, Points]:
        """velocity <- inertia r1 velocity + pull r2 (parent - child), with r1 and r2 in [0, 1) each number's own."""
        u, source = generation.u, generation.source
        r1, r2 = jax.random.uniform(key, (2, *u.shape))
        velocity = hyperparams.inertia * r1 * memory + hyperparams.pull * r2 * (u[source] - u)
        child = child_mask(source)
        return jnp.where(child, u + velocity, u), jnp.where(child, velocity, memory)


@dataclass(frozen=True)
class EvolverVariation:
    """Children take the points that an evolver asks for, such as Evosax(DifferentialEvolution, population_size=n).

    It is told the points of all members and their fitness, and searches a space without bounds that `BoundTransform`
    maps into the cube. Its hyperparameters are the evolver's.
    """

    evolver: Evolver
    hyperparams_class = object

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.default_hyperparams(self.evolver)

    def check(self, size: int) -> None:
        n = self.evolver.population_size
        require(n == size, "variation.evolver.population_size", n, f"must be the size of the population, {size}")
        search.require_from_params(self.evolver, "variation.evolver", "members that did not take what it asked for")

    def init(self, key: Key, u: Points, hyperparams: Hyperparams) -> Any:
        middle = jnp.full(u.shape[1:], 0.5, jnp.float32)
        evolver = bind(self.evolver, hyperparams)
        if isinstance(evolver, MemberInitEvolver):
            return evolver.from_members(key, UNIT_CUBE.unfold_array(u), middle)
        return evolver.init(key, middle)

    def __call__(self, key: Key, generation: Generation, memory: Any, hyperparams: Any) -> tuple[Points, Any]:
        key_tell, key_ask = jax.random.split(key)
        evolver = bind(self.evolver, hyperparams)
        memory, _ = search.tell(evolver, key_tell, UNIT_CUBE.unfold_array(generation.u), generation.fitness, memory)
        asked, _, after = search.ask(evolver, key_ask, memory)
        return jnp.where(
            child_mask(generation.source), UNIT_CUBE.fold_array(asked), generation.u
        ), search.merge_asked_state(after, memory)


def child_mask(source: Int[Array, " n"]) -> Array:
    """Who took over from another, [n, 1]."""
    return (source != jnp.arange(len(source)))[:, None]
