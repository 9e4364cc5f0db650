"""How a genetic algorithm makes children: crossover of parents and mutation, on rows of parameters."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.bounds import BoundTransform
from evorl.ec.noise import integers, normal
from evorl.errors import require, require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Bound, BoundedOperator, Key

Rows = Float[Array, "n size"]
Layer = Int[np.ndarray, " size"]  # of each number, to which leaf of the parameters it belongs


@runtime_checkable
class Crossover(Protocol):
    """One child of each pair of parents."""

    def __call__(self, key: Key, first: Rows, second: Rows) -> Rows:
        """The children of first and second, row by row."""
        ...


@runtime_checkable
class Mutation(Protocol):
    """Changed members."""

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        """Members after mutation."""
        ...


@dataclass(frozen=True)
class NPointCrossover:
    """A child follows its first parent and changes over to the other at so many random places."""

    points: int = 1

    def __post_init__(self) -> None:
        require_int("points", self.points)

    def __call__(self, key: Key, first: Rows, second: Rows) -> Rows:
        n, size = first.shape
        places = 1 + integers(key, (self.points, n, 1), max(size - 1, 1))
        changes = (jnp.arange(size) >= places).sum(0)
        return jnp.where(changes % 2 == 0, first, second)


@dataclass(frozen=True)
class SBX:
    """Simulated binary crossover (Deb & Agrawal 1995, Complex Systems 9): children as far apart as their parents.

    That is so on average; the larger eta, the more nearly.
    """

    eta: float = 15.0

    def __post_init__(self) -> None:
        require(self.eta >= 0, "eta", self.eta, "must not be negative")

    def __call__(self, key: Key, first: Rows, second: Rows) -> Rows:
        u = jax.random.uniform(key, first.shape)
        spread = jnp.where(u <= 0.5, 2 * u, 0.5 / (1 - u)) ** (1 / (self.eta + 1))
        return (first + second) / 2 + spread * (first - second) / 2


@dataclass(frozen=True)
class BoundedSBX:
    """SBX of which each variable, with probability `rate`, is crossed, within bounds, infinite where there are none.

    Deb & Agrawal 1995 as in Deb's NSGA-II: a child lies on either side of the pair, and its spread is cut where the
    bound on that side is. Of a variable that is not crossed it has its first parent's.
    """

    eta: float = 15.0
    rate: float = 0.5
    low: Bound = -float("inf")
    high: Bound = float("inf")

    def __post_init__(self) -> None:
        require(self.eta >= 0, "eta", self.eta, "must not be negative")
        require(0 <= self.rate <= 1, "rate", self.rate, "must be between 0 and 1")
        BoundTransform(self.low, self.high)

    def with_limits(self, low: Bound, high: Bound) -> "BoundedSBX":
        return replace(self, low=low, high=high)

    def __call__(self, key: Key, first: Rows, second: Rows) -> Rows:
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        crosses, swaps, u = jax.random.uniform(key, (3, *first.shape))
        above = (first > second) ^ (swaps < 0.5)  # so that the child of the pair the other way round is below
        apart = jnp.abs(first - second)
        room = jnp.where(above, high - jnp.maximum(first, second), jnp.minimum(first, second) - low)
        reach = 1 + 2 * room / jnp.where(apart > 0, apart, 1)
        alpha = 2 - reach ** -(self.eta + 1)
        drawn = u * alpha
        spread = jnp.where(drawn <= 1, drawn, 1 / (2 - drawn)) ** (1 / (self.eta + 1))
        child = (first + second) / 2 + jnp.where(above, 0.5, -0.5) * spread * apart
        return jnp.where((crosses < self.rate) & (apart > 0), jnp.clip(child, low, high), first)


@part
class GaussianMutation:
    """Normal noise on every parameter (Such et al. 2017, arXiv:1712.06567).

    Default: of the order of those of Such et al. 2017, which differ with the task.
    """

    std: Number = number(0.01, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.5))

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        del layer
        return members + self.std * normal(key, members.shape)


@part
class ERLMutation:
    """Some parameters of some layers change in proportion to themselves, some a lot, some are drawn anew.

    Source: Khadka & Tumer 2018, arXiv:1805.07917, algorithm 3. A layer changes with a probability that is drawn
    each time, uniformly from 0 to 2. Vectors (biases) count as layers; the authors' code leaves them alone.
    Defaults: the paper's code.
    """

    fraction: Number = number(0.1, 0, 1, "of the parameters of a layer, which change")
    std: Number = number(0.1, 0, about="of a change, relative to the parameter")
    super_rate: Number = number(0.05, 0, 1, "of the changes, those with super_std")
    super_std: Number = number(10.0, 0, about="of a large change, relative to the parameter")
    reset_rate: Number = number(0.05, 0, 1, "of the changes, those to a standard normal number")
    bound: Number = number(1e6, 0, about="that parameters are clipped to")

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        n, size = members.shape
        key_layers, key_uniform, key_normal = jax.random.split(key, 3)
        often, drawn = jax.random.uniform(key_layers, (2, n, layer.max() + 1))[:, :, layer]
        which, kind = jax.random.uniform(key_uniform, (2, n, size))
        noise = normal(key_normal, (n, size))
        scale = jnp.where(kind < self.super_rate, self.super_std, self.std)
        anew = (kind >= self.super_rate) & (kind < self.super_rate + self.reset_rate)
        changed = jnp.where(anew, noise, members + scale * jnp.abs(members) * noise)
        mutates = (drawn < 2 * often) & (which < self.fraction)
        return jnp.clip(jnp.where(mutates, changed, members), -self.bound, self.bound)


@part
class PolynomialMutation:
    """Changes of a polynomial density, the denser the smaller they are, within bounds, infinite where there are none.

    Deb & Goyal 1996, bounded as in Deb's NSGA-II. Each variable changes with probability rate over their number.
    Defaults: Deb et al. 2002, section V.
    """

    low: Bound = -float("inf")
    high: Bound = float("inf")
    eta: Number = number(20.0, 0, about="the larger, the smaller are changes")
    rate: Number = number(1.0, 0, about="variables of a child that change on average")
    width: Number = number(1.0, 0, about="the largest change of a variable without bounds")

    def __post_init__(self) -> None:
        BoundTransform(self.low, self.high)

    def with_limits(self, low: Bound, high: Bound) -> "PolynomialMutation":
        return replace(self, low=low, high=high)

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        del layer
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        changes, u = jax.random.uniform(key, (2, *members.shape))
        width = jnp.where(jnp.isfinite(high - low), high - low, self.width)
        power = self.eta + 1
        up, less = u > 0.5, 2 * jnp.minimum(u, 1 - u)
        room = jnp.clip(jnp.where(up, high - members, members - low) / width, 0, 1)
        size = 1 - (less + (1 - less) * (1 - room) ** power) ** (1 / power)
        changed = jnp.clip(members + jnp.where(up, size, -size) * width, low, high)
        return jnp.where(changes < self.rate / members.shape[1], changed, members)


def create_offspring(keys: tuple[Key, Key, Key], pairs: tuple[Rows, Rows], evolver: Any, layer: Layer) -> Rows:
    """A child of each of the pairs by the crossover and mutation of an evolver, and their rates.

    The keys are for crossover, for mutation and for whom which of them befalls.
    """
    (mothers, fathers), (key_cross, key_mutate, key_rates) = pairs, keys
    crosses, mutates = jax.random.uniform(key_rates, (2, len(mothers), 1))
    children = evolver.crossover(key_cross, mothers, fathers)
    children = jnp.where(crosses < evolver.crossover_rate, children, mothers)
    mutated = evolver.mutation(key_mutate, children, layer)
    return jnp.where(mutates < evolver.mutation_rate, mutated, children)


def create_paired_offspring(keys: tuple[Key, Key, Key], parents: Rows, evolver: Any, layer: Layer) -> Rows:
    """As many children as parents, whose halves are pairs; both children of a pair draw the same.

    So what one of them has not of its parents the other one has. Who would be its parent again is crossed after all,
    since copies of who was lucky once would fill a population. The rest is as in create_offspring.
    """
    key_cross, key_mutate, key_rates = keys
    key_crosses, key_mutates = jax.random.split(key_rates)
    first, second = jnp.split(parents, 2)
    crosses = jax.random.uniform(key_crosses, (len(first), 1)) < evolver.crossover_rate
    ways = (first, second), (second, first)
    crossed = jnp.concatenate([evolver.crossover(key_cross, *way) for way in ways])
    children = jnp.where(jnp.concatenate([crosses, crosses]), crossed, parents)
    mutates = jax.random.uniform(key_mutates, (len(children), 1)) < evolver.mutation_rate
    children = jnp.where(mutates, evolver.mutation(key_mutate, children, layer), children)
    return jnp.where((children == parents).all(1, keepdims=True), crossed, children)


def limit_operator(part: Any, low: Bound, high: Bound) -> Any:
    """A part of an evolver within bounds, or as it is where it knows none."""
    return part.with_limits(low, high) if isinstance(part, BoundedOperator) else part
