"""Spaces: what an observation or an action may be, and what lies directly within it."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from evorl.errors import INT32_MAX, OptionError, require, require_int, to_printable
from evorl.keys import require_key

Bound: TypeAlias = int | float | tuple[Any, ...]
Choices: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Arrays of one shape between two bounds, which are numbers or nested tuples of that shape.

    Bounds may be given as lists or arrays. Raises OptionError where low is above high or the shape has no numbers.
    """

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _normalize_shape(self)
        try:
            for name in ("low", "high"):
                object.__setattr__(self, name, to_bound(getattr(self, name)))
            object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
            low, high = self.bounds
            ordered = bool((low <= high).all())
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise OptionError(
                f"{to_printable(self)}: its bounds are no numbers of its shape and dtype; {error}"
            ) from None
        require(ordered, "low", to_printable(self.low), f"must not be above high, {to_printable(self.high)}")

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
        require_key(key)
        low, high = self.bounds
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"cannot sample {self}: a bound is infinite")
        return jax.random.uniform(key, self.shape, minval=low, maxval=high).astype(self.dtype)


@dataclass(frozen=True, repr=False)
class Discrete:
    """n integers from start on."""

    n: int
    start: int = 0

    dtype = "int32"

    def __post_init__(self) -> None:
        require_int("n", self.n)
        require_int("start", self.start, -INT32_MAX - 1, INT32_MAX - self.n + 1)

    def __repr__(self) -> str:
        return f"Discrete(n={self.n}{f', start={self.start}' if self.start else ''})"

    @property
    def shape(self) -> tuple[int, ...]:
        """[]."""
        return ()

    @property
    def choices(self) -> Choices:
        """Of each number, which is one here."""
        return (self.n,)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(least, most)."""
        return np.asarray(self.start, np.int32), np.asarray(self.start + self.n - 1, np.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        return jax.random.randint(key, (), self.start, self.start + self.n, jnp.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, the i-th one of choices[i] from starts[i] on, or from 0; in a row, or of a shape."""

    choices: Choices
    starts: Choices = ()
    shape: tuple[int, ...] = ()

    dtype = "int32"

    def __post_init__(self) -> None:
        _normalize_numbers(self, "choices", 1)
        _normalize_numbers(self, "starts", -INT32_MAX - 1)
        require(len(self.choices) > 0, "choices", self.choices, "must be at least one number")
        object.__setattr__(self, "starts", self.starts or (0,) * len(self.choices))
        object.__setattr__(self, "shape", self.shape or (len(self.choices),))
        _normalize_shape(self)
        count = len(self.choices)
        require(len(self.starts) == count, "starts", self.starts, f"must be one for each of choices, {count}")
        require(math.prod(self.shape) == count, "shape", self.shape, f"must have as many numbers as choices, {count}")

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(least, most), each of the shape."""
        least = np.reshape(np.array(self.starts, np.int32), self.shape)
        return least, least + np.reshape(np.array(self.choices, np.int32), self.shape) - 1

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        low, high = self.bounds
        return jax.random.randint(key, self.shape, low, high + 1, jnp.int32)


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of 0 and 1, or of truth values."""

    shape: tuple[int, ...]
    dtype: str = "int8"

    def __post_init__(self) -> None:
        _normalize_shape(self)

    @property
    def choices(self) -> Choices:
        """Two of each number."""
        return (2,) * math.prod(self.shape)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(0, 1), each of the shape."""
        return np.zeros(self.shape, self.dtype), np.ones(self.shape, self.dtype)

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        return jax.random.bernoulli(key, 0.5, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Dict:
    """Several spaces by name; a value of it is a dict of theirs."""

    parts: Mapping[str, "Space"]

    def __post_init__(self) -> None:
        require(isinstance(self.parts, Mapping) and len(self.parts) > 0, "parts", self.parts, "must be spaces by name")
        _require_spaces(**self.parts)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.parts.items(), key=lambda part: part[0])))

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class Tuple:
    """Several spaces in order; a value of it is a tuple of theirs."""

    parts: tuple["Space", ...]

    def __post_init__(self) -> None:
        several = isinstance(self.parts, Sequence) and len(self.parts) > 0
        require(several, "parts", self.parts, "must be spaces in order")
        object.__setattr__(self, "parts", tuple(self.parts))
        _require_spaces(**{str(i): part for i, part in enumerate(self.parts)})

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class ObsWithActionMask:
    """Observations of a space, and which choices of the next action are legal.

    A value is {"obs": of the space, "legal": bool [sum of choices]}; choices are those of the action space, and of
    several numbers the masks follow one another. A network sees obs alone; where a number has no legal choice all are.
    """

    space: "Space"
    choices: Choices

    def __post_init__(self) -> None:
        _normalize_numbers(self, "choices", 1)
        _require_spaces(space=self.space)

    @property
    def parts(self) -> dict[str, "Space"]:
        """Its two parts by name."""
        return {"legal": MultiBinary((sum(self.choices),), "bool"), "obs": self.space}

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class PrivilegedObs:
    """Observations of a space, and a state that no policy may see, but a value may while it is learned.

    A value is {"obs": of the space, "state": of the state's}.
    """

    space: "Space"
    state: "Space"

    def __post_init__(self) -> None:
        _require_spaces(space=self.space, state=self.state)

    @property
    def parts(self) -> dict[str, "Space"]:
        """Its two parts by name."""
        return {"obs": self.space, "state": self.state}

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class Members:
    """A value of a space for each of n members of a group, who have one role in a game; leaves [n, ...]."""

    space: "Space"
    n: int

    def __post_init__(self) -> None:
        require_int("n", self.n)
        _require_spaces(space=self.space)

    @property
    def joint_space(self) -> "Space":
        """The space of the same values whose parts are no longer those of members, but arrays that lead with n."""
        space, n = self.space, self.n

        def repeat_bound(bound: Bound) -> Bound:
            return (bound,) * n if isinstance(bound, tuple) else bound

        match space:
            case Box():
                return Box(repeat_bound(space.low), repeat_bound(space.high), (n, *space.shape), space.dtype)
            case Discrete():
                return MultiDiscrete((space.n,) * n, (space.start,) * n)
            case MultiDiscrete():
                return MultiDiscrete(space.choices * n, space.starts * n, (n, *space.shape))
            case MultiBinary():
                return MultiBinary((n, *space.shape), space.dtype)
            case Members():
                return Members(space.joint_space, n).joint_space
            case Tuple():
                return Tuple(tuple(Members(part, n).joint_space for part in space.parts))
        return Dict({name: Members(part, n).joint_space for name, part in space.parts.items()})

    def sample(self, key: jax.Array) -> Any:
        """Each member's is drawn apart."""
        require_key(key)
        return jax.vmap(self.space.sample)(jax.random.split(key, self.n))


Choice: TypeAlias = Discrete | MultiDiscrete | MultiBinary
Simple: TypeAlias = Box | Choice
Space: TypeAlias = Simple | Dict | Tuple | ObsWithActionMask | PrivilegedObs | Members


def to_bound(values: Any) -> Bound:
    """A bound of a Box, hashable: a number, also where all of a list or an array are the same, or nested tuples."""
    if isinstance(values, (int, float)):
        return values
    values = np.asarray(values)
    return (
        values.flat[0].item() if values.size and (values == values.flat[0]).all() else _to_nested_tuple(values.tolist())
    )


def _to_nested_tuple(values: Any) -> Any:
    return tuple(map(_to_nested_tuple, values)) if isinstance(values, list) else values


def subspaces(space: Space) -> list[tuple[Any, "Space"]]:
    """The spaces directly within a space, each with its name or place in a value; none of a simple one."""
    match space:
        case Dict() | ObsWithActionMask() | PrivilegedObs():
            return sorted(space.parts.items(), key=lambda part: part[0])
        case Tuple():
            return list(enumerate(space.parts))
        case Members():
            return subspaces(space.joint_space)
    return []


def _sample_parts(space: Space, key: jax.Array) -> Any:
    """A value whose parts are drawn apart."""
    require_key(key)
    parts = subspaces(space)
    keys = jax.random.split(key, len(parts))
    values = {name: of.sample(key) for (name, of), key in zip(parts, keys, strict=True)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def _require_spaces(**parts: Any) -> None:
    """Raises OptionError where a part of a new space is none itself."""
    for name, part in parts.items():
        require(isinstance(part, Space), name, to_printable(part), "must be a space, such as evorl.Box")


def _normalize_shape(space: Any) -> None:
    """Gives a new space its shape as a tuple; raises OptionError where it is none, or holds no numbers."""
    try:
        shape = tuple(operator.index(length) for length in space.shape)
    except TypeError:
        raise OptionError(f"shape={space.shape}: must be a tuple of whole numbers") from None
    require(min(shape, default=1) >= 1, "shape", shape, "must have lengths of at least 1: a space is not empty")
    object.__setattr__(space, "shape", shape)


def _normalize_numbers(space: Any, name: str, least: int) -> None:
    """Gives a new space whole numbers as a tuple; raises OptionError where they are none, or one is below the least."""
    numbers = getattr(space, name)
    require(np.ndim(numbers) == 1 and not isinstance(numbers, str), name, numbers, "must be a tuple of whole numbers")
    for number in numbers:
        require_int(name, number, least)
    object.__setattr__(space, name, tuple(map(int, numbers)))
