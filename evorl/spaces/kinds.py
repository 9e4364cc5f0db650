"""Classes of observation and action spaces."""

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
    """Arrays of one shape with bounds for each entry.

    Args:
        low: Lower bound, a number or nested tuples of the shape; lists and arrays are converted.
        high: Upper bound, a number or nested tuples of the shape; lists and arrays are converted.
        shape: Shape of a value.
        dtype: Type of a value.

    Raises:
        OptionError: If low is above high, if a bound does not fit the shape and dtype, or if the shape has no
            entries.
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
            raise OptionError(f"{to_printable(self)}: its bounds do not fit its shape and dtype; {error}") from None
        require(ordered, "low", to_printable(self.low), f"must not be above high, {to_printable(self.high)}")

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper bound, both of the full shape."""
        low, high = (np.broadcast_to(np.asarray(bound, self.dtype), self.shape) for bound in (self.low, self.high))
        return low, high

    @property
    def float_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds as float32, in which sums of integers do not overflow."""
        low, high = (bound.astype(np.float32) for bound in self.bounds)
        return low, high

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def sample(self, key: jax.Array) -> jax.Array:
        """Sample uniformly between the bounds, of integers including both; raise ValueError if one is infinite."""
        require_key(key)
        low, high = self.bounds
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"cannot sample {self}: a bound is infinite")
        if not np.issubdtype(self.dtype, np.integer):
            return jax.random.uniform(key, self.shape, minval=low, maxval=high).astype(self.dtype)
        wide = np.uint32 if np.issubdtype(self.dtype, np.unsignedinteger) else np.int32
        above = np.minimum(high.astype(np.int64) + 1, np.iinfo(wide).max).astype(wide)
        return jax.random.randint(key, self.shape, low.astype(wide), above, wide).astype(self.dtype)


@dataclass(frozen=True, repr=False)
class Discrete:
    """Integers from start to start + n - 1.

    Args:
        n: Number of choices.
        start: Lowest value.
    """

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
        """Return the shape of a value, which is empty."""
        return ()

    @property
    def choices(self) -> Choices:
        """Return the number of choices as a tuple of length 1."""
        return (self.n,)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest value."""
        return np.asarray(self.start, np.int32), np.asarray(self.start + self.n - 1, np.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        return jax.random.randint(key, (), self.start, self.start + self.n, jnp.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Arrays of integers: entry i is from starts[i] to starts[i] + choices[i] - 1.

    Args:
        choices: Number of choices of each entry.
        starts: Lowest value of each entry; empty for 0.
        shape: Shape of a value; empty for a vector.
    """

    choices: Choices
    starts: Choices = ()
    shape: tuple[int, ...] = ()

    dtype = "int32"

    def __post_init__(self) -> None:
        _normalize_numbers(self, "choices", 1)
        _normalize_numbers(self, "starts", -INT32_MAX - 1)
        require(len(self.choices) > 0, "choices", self.choices, "must have at least one number")
        object.__setattr__(self, "starts", self.starts or (0,) * len(self.choices))
        object.__setattr__(self, "shape", self.shape or (len(self.choices),))
        _normalize_shape(self)
        count = len(self.choices)
        require(len(self.starts) == count, "starts", self.starts, f"must have as many numbers as choices, {count}")
        require(math.prod(self.shape) == count, "shape", self.shape, f"must have as many entries as choices, {count}")

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest value of each entry, both of the full shape."""
        least = np.reshape(np.array(self.starts, np.int32), self.shape)
        return least, least + np.reshape(np.array(self.choices, np.int32), self.shape) - 1

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        low, high = self.bounds
        return jax.random.randint(key, self.shape, low, high + 1, jnp.int32)


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of 0 and 1, or of booleans.

    Args:
        shape: Shape of a value.
        dtype: Type of a value.
    """

    shape: tuple[int, ...]
    dtype: str = "int8"

    def __post_init__(self) -> None:
        _normalize_shape(self)

    @property
    def choices(self) -> Choices:
        """Return the number of choices of each entry, which is 2."""
        return (2,) * math.prod(self.shape)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return arrays of 0 and of 1, both of the full shape."""
        return np.zeros(self.shape, self.dtype), np.ones(self.shape, self.dtype)

    def sample(self, key: jax.Array) -> jax.Array:
        require_key(key)
        return jax.random.bernoulli(key, 0.5, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Dict:
    """Dictionary of spaces; a value is a dict with one value of each space.

    Args:
        parts: Spaces by name.
    """

    parts: Mapping[str, "Space"]

    def __post_init__(self) -> None:
        require(
            isinstance(self.parts, Mapping) and len(self.parts) > 0,
            "parts",
            self.parts,
            "must be a mapping from names to spaces",
        )
        _require_spaces(**self.parts)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.parts.items(), key=lambda part: part[0])))

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class Tuple:
    """Tuple of spaces; a value is a tuple with one value of each space.

    Args:
        parts: Spaces in order.
    """

    parts: tuple["Space", ...]

    def __post_init__(self) -> None:
        several = isinstance(self.parts, Sequence) and len(self.parts) > 0
        require(several, "parts", self.parts, "must be a sequence of spaces")
        object.__setattr__(self, "parts", tuple(self.parts))
        _require_spaces(**{str(i): part for i, part in enumerate(self.parts)})

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class ObsWithActionMask:
    """Observations with an action mask, which marks the valid choices of the next action.

    A value is {"obs": value of `space`, "legal": bool [sum of choices]}. For an action of several dimensions,
    their masks are concatenated. A network receives only "obs". If no choice of a dimension is valid by the
    mask, all its choices are valid.

    Args:
        space: Space of the observations without the mask.
        choices: Number of choices of each action dimension.
    """

    space: "Space"
    choices: Choices

    def __post_init__(self) -> None:
        _normalize_numbers(self, "choices", 1)
        _require_spaces(space=self.space)

    @property
    def parts(self) -> dict[str, "Space"]:
        """Return the spaces of the mask and of the observation, by name."""
        return {"legal": MultiBinary((sum(self.choices),), "bool"), "obs": self.space}

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class PrivilegedObs:
    """Observations with a privileged state, which value functions see during training instead of the observation.

    A value is {"obs": value of `space`, "state": value of `state`}. A policy sees only "obs", and a critic or
    a state value only "state", which should therefore contain all of the observation that matters. With an
    action mask, the space is ObsWithActionMask(PrivilegedObs(...), choices).

    Args:
        space: Space of the observations, without an action mask.
        state: Space of the privileged state.

    Raises:
        OptionError: If `space` has an action mask or a privileged state.
    """

    space: "Space"
    state: "Space"

    def __post_init__(self) -> None:
        _require_spaces(space=self.space, state=self.state)
        plain = not isinstance(self.space, ObsWithActionMask | PrivilegedObs)
        require(plain, "space", self.space, "must have no parts; use ObsWithActionMask(PrivilegedObs(...), choices)")

    @property
    def parts(self) -> dict[str, "Space"]:
        """Return the spaces of the observation and of the privileged state, by name."""
        return {"obs": self.space, "state": self.state}

    def sample(self, key: jax.Array) -> Any:
        return _sample_parts(self, key)


@dataclass(frozen=True)
class Members:
    """Values for the n agents of a group, which have the same role in a game; leaves [n, ...].

    Args:
        space: Space of the value of one agent.
        n: Number of agents in the group.
    """

    space: "Space"
    n: int

    def __post_init__(self) -> None:
        require_int("n", self.n)
        _require_spaces(space=self.space)

    @property
    def joint_space(self) -> "Space":
        """Return the space of the same values as plain arrays with a leading axis of length n."""
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
        """Sample a value for each agent independently."""
        require_key(key)
        return jax.vmap(self.space.sample)(jax.random.split(key, self.n))


Choice: TypeAlias = Discrete | MultiDiscrete | MultiBinary
Simple: TypeAlias = Box | Choice
Space: TypeAlias = Simple | Dict | Tuple | ObsWithActionMask | PrivilegedObs | Members


def to_bound(values: Any) -> Bound:
    """Return a bound of a Box in hashable form.

    Args:
        values: A number, a list or an array.

    Returns:
        A number if all entries are equal, else nested tuples.
    """
    if isinstance(values, (int, float)):
        return values
    values = np.asarray(values)
    return (
        values.flat[0].item() if values.size and (values == values.flat[0]).all() else _to_nested_tuple(values.tolist())
    )


def _to_nested_tuple(values: Any) -> Any:
    return tuple(map(_to_nested_tuple, values)) if isinstance(values, list) else values


def subspaces(space: Space) -> list[tuple[Any, "Space"]]:
    """Return the spaces directly within a space, each with its name or index in a value.

    Args:
        space: Space of any kind; one without subspaces gives an empty list.
    """
    match space:
        case Dict() | ObsWithActionMask() | PrivilegedObs():
            return sorted(space.parts.items(), key=lambda part: part[0])
        case Tuple():
            return list(enumerate(space.parts))
        case Members():
            return subspaces(space.joint_space)
    return []


def _sample_parts(space: Space, key: jax.Array) -> Any:
    """Sample the parts of a value independently."""
    require_key(key)
    parts = subspaces(space)
    keys = jax.random.split(key, len(parts))
    values = {name: of.sample(key) for (name, of), key in zip(parts, keys, strict=True)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def _require_spaces(**parts: Any) -> None:
    """Raise OptionError if a part of a new space is not a space."""
    for name, part in parts.items():
        require(isinstance(part, Space), name, to_printable(part), "must be a space, such as evorl.Box")


def _normalize_shape(space: Any) -> None:
    """Convert the shape of a new space to a tuple; raise OptionError if it is not a shape or has no entries."""
    try:
        shape = tuple(operator.index(length) for length in space.shape)
    except TypeError:
        raise OptionError(f"shape={space.shape}: must be a tuple of whole numbers") from None
    require(min(shape, default=1) >= 1, "shape", shape, "must have lengths of at least 1")
    object.__setattr__(space, "shape", shape)


def _normalize_numbers(space: Any, name: str, least: int) -> None:
    """Convert a field of a new space to a tuple of integers; raise OptionError if it is not one.

    An integer below `least` is also an error.
    """
    numbers = getattr(space, name)
    require(np.ndim(numbers) == 1 and not isinstance(numbers, str), name, numbers, "must be a tuple of whole numbers")
    for number in numbers:
        require_int(name, number, least)
    object.__setattr__(space, name, tuple(map(int, numbers)))
