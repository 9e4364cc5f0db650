"""Priors, the search spaces of hyperparameters: maps from the unit interval, in which the search takes place."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from evorl.errors import INT32_MAX, is_number, require, require_int
from evorl.types import Prior


@dataclass(frozen=True)
class Uniform:
    """Uniform prior on real numbers.

    Args:
        low: Lowest value.
        high: Highest value.
    """

    low: float
    high: float
    e_folds = 0.0

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def decode(self, u: Array) -> Array:
        return self.low + u * (self.high - self.low)

    def encode(self, x: Array) -> Array:
        return jnp.clip((x - self.low) / (self.high - self.low), 0, 1)


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform prior on positive real numbers: all orders of magnitude are equally likely.

    Args:
        low: Lowest value, above 0.
        high: Highest value.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)
        require(self.low > 0, "low", self.low, "must be above 0 for a logarithmic scale")

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def e_folds(self) -> float:
        return math.log(self.high / self.low)

    def decode(self, u: Array) -> Array:
        return self.low * jnp.exp(u * self.e_folds)

    def encode(self, x: Array) -> Array:
        return jnp.clip(jnp.log(x / self.low) / self.e_folds, 0, 1)


@dataclass(frozen=True)
class OneMinus:
    """Prior of 1 - x, where x has another prior.

    Example: OneMinus(LogUniform(1e-3, 1e-1)) gives discounts between 0.9 and 0.999.

    Args:
        prior: Prior of x.
    """

    prior: Prior

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.prior.bounds
        return 1 - high, 1 - low

    @property
    def e_folds(self) -> float:
        return self.prior.e_folds

    def decode(self, u: Array) -> Array:
        return 1 - self.prior.decode(u)

    def encode(self, x: Array) -> Array:
        return self.prior.encode(1 - x)


@dataclass(frozen=True)
class Neg:
    """Prior of -x, where x has another prior.

    Example: Neg(LogUniform(1e-5, 1)) gives numbers between -1 and -1e-5.

    Args:
        prior: Prior of x.
    """

    prior: Prior

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.prior.bounds
        return -high, -low

    @property
    def e_folds(self) -> float:
        return self.prior.e_folds

    def decode(self, u: Array) -> Array:
        return -self.prior.decode(u)

    def encode(self, x: Array) -> Array:
        return self.prior.encode(-x)


@dataclass(frozen=True)
class Integer:
    """Uniform prior on integers.

    Args:
        low: Lowest value.
        high: Highest value, included.
    """

    low: int
    high: int
    e_folds = 0.0

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)
        for name, end in (("low", self.low), ("high", self.high)):
            require_int(name, end, -INT32_MAX)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def decode(self, u: Array) -> Array:
        return self.low + _cell_index(u, self.high - self.low + 1).astype(jnp.float32)

    def encode(self, x: Array) -> Array:
        return jnp.clip((x - self.low + 0.5) / (self.high - self.low + 1), 0, 1)


@dataclass(frozen=True)
class PowerOfTwo:
    """Uniform prior on powers of two.

    Args:
        low: Lowest value, a power of two, at least 1.
        high: Highest value, a power of two, included.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)
        for name, end in (("low", self.low), ("high", self.high)):
            require(end >= 1 and math.log2(end).is_integer(), name, end, "must be a power of two")

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def e_folds(self) -> float:
        return self._count * math.log(2)  # one octave per cell of the unit interval

    def decode(self, u: Array) -> Array:
        powers = [self.low * 2.0**i for i in range(self._count)]  # powers computed by XLA are not exact integers
        return jnp.asarray(powers, jnp.float32)[_cell_index(u, self._count)]

    def encode(self, x: Array) -> Array:
        return jnp.clip((jnp.log2(x / self.low) + 0.5) / self._count, 0, 1)

    @property
    def _count(self) -> int:
        return round(math.log2(self.high / self.low)) + 1


@dataclass(frozen=True)
class Choice:
    """Uniform prior on a list of numbers.

    If the numbers have an order, list them in that order, since a search tries the neighbors of a good value
    first.

    Args:
        values: Numbers to choose from, at least two.
    """

    values: tuple[float, ...]
    e_folds = 0.0

    def __post_init__(self) -> None:
        require(len(self.values) >= 2, "values", self.values, "must be at least two numbers")
        numbers = all(is_number(x) and math.isfinite(x) for x in self.values)
        require(numbers, "values", self.values, "must be finite numbers")

    @property
    def bounds(self) -> tuple[float, float]:
        return min(self.values), max(self.values)

    def decode(self, u: Array) -> Array:
        return jnp.asarray(self.values, jnp.float32)[_cell_index(u, len(self.values))]

    def encode(self, x: Array) -> Array:
        nearest = jnp.abs(jnp.asarray(self.values, jnp.float32) - x[..., None]).argmin(-1)
        return (nearest + 0.5) / len(self.values)


@dataclass(frozen=True)
class Fixed:
    """Constant value of a hyperparameter, which is not searched even if it has a declared prior.

    Args:
        value: Value of the hyperparameter.
    """

    value: float

    def __post_init__(self) -> None:
        require(is_number(self.value), "value", self.value, "must be a number")

    @property
    def bounds(self) -> tuple[float, float]:
        return self.value, self.value


def _cell_index(u: Array, count: int) -> Array:
    """Return the index of the cell that contains u, if the unit interval is divided into `count` equal cells."""
    return jnp.clip(jnp.floor(u * count), 0, count - 1).astype(jnp.int32)


def _check_bounds(low: float, high: float) -> None:
    for name, end in (("low", low), ("high", high)):
        require(is_number(end) and math.isfinite(end), name, end, "must be a finite number")
    require(low < high, "high", high, f"must be above low, {low}")
