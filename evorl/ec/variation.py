"""How a genetic algorithm makes children: crossover of parents and mutation, on rows of parameters."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.ec.noise import integers, normal
from evorl.errors import require
from evorl.hyperparameters import Number, hyperparameter
from evorl.priors import LogUniform
from evorl.types import Hyperparams, Key

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

    @property
    def takes(self) -> type:
        """The class of its hyperparameters."""
        ...

    def __call__(self, key: Key, members: Rows, layer: Layer, hyperparams: Hyperparams) -> Rows:
        """Members after mutation."""
        ...


@dataclass(frozen=True)
class NPoint:
    """A child follows its first parent and changes over to the other at so many random places."""

    points: int = 1

    def __post_init__(self) -> None:
        require(self.points >= 1, "points", self.points, "must be at least 1")

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


@struct.dataclass
class GaussianMutationHyperparams:
    """Default: of the order of those of Such et al. 2017, which differ with the task."""

    std: Number = hyperparameter(0.01, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.5))


@dataclass(frozen=True)
class GaussianMutation:
    """Normal noise on every parameter (Such et al. 2017, arXiv:1712.06567)."""

    takes = GaussianMutationHyperparams

    def __call__(self, key: Key, members: Rows, layer: Layer, hyperparams: GaussianMutationHyperparams) -> Rows:
        del layer
        return members + hyperparams.std * normal(key, members.shape)


@struct.dataclass
class ERLMutationHyperparams:
    """Defaults: Khadka & Tumer 2018, algorithm 3 and its code."""

    fraction: Number = hyperparameter(0.1, 0, 1, "of the parameters of a layer, which change")
    std: Number = hyperparameter(0.1, 0, about="of a change, relative to the parameter")
    super_rate: Number = hyperparameter(0.05, 0, 1, "of the changes, those with super_std")
    super_std: Number = hyperparameter(10.0, 0, about="of a large change, relative to the parameter")
    reset_rate: Number = hyperparameter(0.05, 0, 1, "of the changes, those to a standard normal number")
    bound: Number = hyperparameter(1e6, 0, about="that parameters are clipped to")


@dataclass(frozen=True)
class ERLMutation:
    """Some parameters of some layers change in proportion to themselves, some a lot, some are drawn anew.

    Source: Khadka & Tumer 2018, arXiv:1805.07917, algorithm 3. A layer changes with a probability that is drawn each
    time, uniformly from 0 to 2. Vectors (biases) count as layers; the authors' code leaves them alone.
    """

    takes = ERLMutationHyperparams

    def __call__(self, key: Key, members: Rows, layer: Layer, hyperparams: ERLMutationHyperparams) -> Rows:
        h, (n, size) = hyperparams, members.shape
        key_layers, key_uniform, key_normal = jax.random.split(key, 3)
        often, drawn = jax.random.uniform(key_layers, (2, n, layer.max() + 1))[:, :, layer]
        which, kind = jax.random.uniform(key_uniform, (2, n, size))
        noise = normal(key_normal, (n, size))
        scale = jnp.where(kind < h.super_rate, h.super_std, h.std)
        anew = (kind >= h.super_rate) & (kind < h.super_rate + h.reset_rate)
        changed = jnp.where(anew, noise, members + scale * jnp.abs(members) * noise)
        mutates = (drawn < 2 * often) & (which < h.fraction)
        return jnp.clip(jnp.where(mutates, changed, members), -h.bound, h.bound)
