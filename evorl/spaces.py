"""Spaces of observations and actions."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Bound: TypeAlias = float | tuple["Bound", ...]


@dataclass(frozen=True)
class Box:
    """Arrays of one shape between two bounds, which are numbers or nested tuples of that shape."""

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each of the full shape."""
        low, high = (np.broadcast_to(np.asarray(bound, self.dtype), self.shape) for bound in (self.low, self.high))
        return low, high

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform between the bounds, which must be finite."""
        low, high = self.bounds
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"cannot sample {self}: a bound is infinite")
        return jax.random.uniform(key, self.shape, minval=low, maxval=high).astype(self.dtype)


@dataclass(frozen=True)
class Discrete:
    """The integers 0 to n - 1."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        """[]."""
        return ()

    @property
    def choices(self) -> tuple[int, ...]:
        """Of each number, which is one here."""
        return (self.n,)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.n, jnp.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, the i-th from 0 to choices[i] - 1."""

    choices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """[numbers]."""
        return (len(self.choices),)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.array(self.choices), jnp.int32)


@dataclass(frozen=True)
class Dict:
    """Several spaces by name; a value of it is a dict of theirs."""

    parts: Mapping[str, "Space"]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.parts.items(), key=lambda part: part[0])))

    def sample(self, key: jax.Array) -> Any:
        keys = jax.random.split(key, len(self.parts))
        return {name: self.parts[name].sample(key) for name, key in zip(sorted(self.parts), keys, strict=True)}


Simple: TypeAlias = Box | Discrete | MultiDiscrete
Space: TypeAlias = Simple | Dict


def leaves(space: Space) -> list[Simple]:
    """The spaces that a space is made of, by name."""
    if isinstance(space, Dict):
        return [leaf for name in sorted(space.parts) for leaf in leaves(space.parts[name])]
    return [space]


def flatten(space: Space, value: Any) -> list[Any]:
    """The parts of a value in the order of leaves."""
    if isinstance(space, Dict):
        return [part for name in sorted(space.parts) for part in flatten(space.parts[name], value[name])]
    return [value]


def unflatten(space: Space, parts: Iterable[Any]) -> Any:
    """The value of a space that has these parts."""
    parts = iter(parts)
    if isinstance(space, Dict):
        return {name: unflatten(space.parts[name], parts) for name in sorted(space.parts)}
    return next(parts)


def shapes(space: Space) -> Any:
    """The shapes of a value of a space."""
    kinds = [(leaf.shape, leaf.dtype if isinstance(leaf, Box) else jnp.int32) for leaf in leaves(space)]
    return unflatten(space, (jax.ShapeDtypeStruct(*kind) for kind in kinds))
