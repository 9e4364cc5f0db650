"""Variation operators of genetic algorithms: crossover and mutation of flattened parameters."""

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
Layer = Int[np.ndarray, " size"]  # index of the parameter leaf of each entry


@runtime_checkable
class Crossover(Protocol):
    """Protocol of crossover operators."""

    def __call__(self, key: Key, first: Rows, second: Rows) -> Rows:
        """Return one child for each pair of parents.

        Args:
            key: Random key.
            first: First parents, shape [n, size].
            second: Second parents, shape [n, size].

        Returns:
            Children, shape [n, size].
        """
        ...


@runtime_checkable
class Mutation(Protocol):
    """Protocol of mutation operators."""

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        """Return the individuals after mutation.

        Args:
            key: Random key.
            members: Individuals, shape [n, size].
            layer: Index of the parameter leaf to which each entry belongs, shape [size].

        Returns:
            Mutated individuals, shape [n, size].
        """
        ...


@dataclass(frozen=True)
class NPointCrossover:
    """N-point crossover on flat genomes, with one child for each pair of parents.

    A child copies its first parent and switches to the other parent at each crossover point. Points may
    coincide, and then cancel out.

    Args:
        points: Number of random crossover points.
    """

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
    """Simulated binary crossover (SBX): on average, the children are as far from each other as their parents.

    Args:
        eta: Distribution index; the larger it is, the closer this distance is to the distance of the parents.

    Source: Deb & Agrawal 1995, Complex Systems 9.
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
    """Simulated binary crossover (SBX) within bounds, applied to each variable with a given probability.

    A child lies on either side of its parents with equal probability, and its spread is limited by the bound
    on that side. A variable that is not crossed is copied from the first parent.

    Args:
        eta: Distribution index; the larger it is, the closer are children to their parents.
        rate: Probability that a variable is crossed.
        low: Lower bound, a number or one per variable; -inf for none.
        high: Upper bound, a number or one per variable; inf for none.

    Source: Deb & Agrawal 1995, as in Deb's code of NSGA-II.
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
        above = (first > second) ^ (swaps < 0.5)  # so that swapped parents give a child on the other side
        apart = jnp.abs(first - second)
        room = jnp.where(above, high - jnp.maximum(first, second), jnp.minimum(first, second) - low)
        reach = 1 + 2 * jnp.maximum(room, 0) / jnp.where(apart > 0, apart, 1)  # a parent may be outside of the bounds
        alpha = 2 - reach ** -(self.eta + 1)
        drawn = u * alpha
        spread = jnp.where(drawn <= 1, drawn, 1 / (2 - drawn)) ** (1 / (self.eta + 1))
        child = (first + second) / 2 + jnp.where(above, 0.5, -0.5) * spread * apart
        return jnp.where((crosses < self.rate) & (apart > 0), jnp.clip(child, low, high), first)


@part
class GaussianMutation:
    """Normal noise on every parameter.

    The default of std is of the order of the values of the paper, which depend on the task.

    Source: Such et al. 2017, arXiv:1712.06567.
    """

    std: Number = number(
        0.01, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(1e-3, 0.5)
    )

    def __call__(self, key: Key, members: Rows, layer: Layer) -> Rows:
        del layer
        return members + self.std * normal(key, members.shape)


@part
class ERLMutation:
    """Mutation of evolutionary reinforcement learning (ERL).

    In each selected layer, a fraction of the parameters changes. A change is noise proportional to the
    parameter, which is large with a small probability, or a reset to a standard normal number. The
    probability that a layer is selected is min(1, u), with u drawn uniformly from 0 to 2 each time. Vectors
    (biases) count as layers, too; the authors' code does not mutate them. The defaults are from the
    paper's code.

    Source: Khadka & Tumer 2018, arXiv:1805.07917, algorithm 3.
    """

    fraction: Number = number(0.1, 0, 1, "fraction of the parameters of a selected layer that change")
    std: Number = number(0.1, 0, about="standard deviation of a change, relative to the parameter")
    super_rate: Number = number(0.05, 0, 1, "fraction of the changes that are large, with super_std")
    super_std: Number = number(10.0, 0, about="standard deviation of a large change, relative to the parameter")
    reset_rate: Number = number(0.05, 0, 1, "fraction of the changes that are resets to a standard normal number")
    bound: Number = number(1e6, 0, about="parameters are clipped to [-bound, bound]")

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
    """Polynomial mutation within bounds: small changes are more likely than large ones.

    Each variable changes with probability rate / (number of variables). The defaults are from Deb et al.
    2002, section V.

    Args:
        low: Lower bound, a number or one per variable; -inf for none.
        high: Upper bound, a number or one per variable; inf for none.

    Source: Deb & Goyal 1996, bounded as in Deb's code of NSGA-II.
    """

    low: Bound = -float("inf")
    high: Bound = float("inf")
    eta: Number = number(20.0, 0, about="distribution index: the larger it is, the smaller are the changes")
    rate: Number = number(1.0, 0, about="expected number of variables of a child that change")
    width: Number = number(1.0, 0, about="largest change of a variable that is not bounded on both sides")

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
    """Return one child per pair of parents, by the crossover, the mutation and the rates of an evolver.

    The keys are for crossover, for mutation, and for the choice of the children that they apply to.
    """
    (mothers, fathers), (key_cross, key_mutate, key_rates) = pairs, keys
    crosses, mutates = jax.random.uniform(key_rates, (2, len(mothers), 1))
    children = evolver.crossover(key_cross, mothers, fathers)
    children = jnp.where(crosses < evolver.crossover_rate, children, mothers)
    mutated = evolver.mutation(key_mutate, children, layer)
    return jnp.where(mutates < evolver.mutation_rate, mutated, children)


def create_paired_offspring(keys: tuple[Key, Key, Key], parents: Rows, evolver: Any, layer: Layer) -> Rows:
    """Return as many children as parents; the first half of the parents is paired with the second half.

    Both children of a pair use the same random numbers for crossover, so that together they contain all genes
    of the parents. A child that would be a copy of its parent is crossed in any case, since copies of an
    individual that was lucky once would fill the population. Otherwise, it works as `create_offspring`.
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
    """Return the operator with the given bounds, or unchanged if it does not support bounds."""
    return part.with_limits(low, high) if isinstance(part, BoundedOperator) else part
