"""Spaces of observations and actions."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeIs

Bound: TypeAlias = int | float | tuple[Any, ...]
Choices: TypeAlias = tuple[int, ...]

NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
ILLEGAL = -1e9  # what a choice is worth that must not be made: less than any other, and finite


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


@dataclass(frozen=True, repr=False)
class Discrete:
    """n integers from start on."""

    n: int
    start: int = 0

    dtype = "int32"

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
        return jax.random.randint(key, (), self.start, self.start + self.n, jnp.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, the i-th one of choices[i] from starts[i] on, or from 0; in a row, or of a shape."""

    choices: Choices
    starts: Choices = ()
    shape: tuple[int, ...] = ()

    dtype = "int32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", self.starts or (0,) * len(self.choices))
        object.__setattr__(self, "shape", self.shape or (len(self.choices),))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(least, most), each of the shape."""
        least = np.reshape(np.array(self.starts, np.int32), self.shape)
        return least, least + np.reshape(np.array(self.choices, np.int32), self.shape) - 1

    def sample(self, key: jax.Array) -> jax.Array:
        low, high = self.bounds
        return jax.random.randint(key, self.shape, low, high + 1, jnp.int32)


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of 0 and 1, or of truth values."""

    shape: tuple[int, ...]
    dtype: str = "int8"

    @property
    def choices(self) -> Choices:
        """Two of each number."""
        return (2,) * math.prod(self.shape)

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(0, 1), each of the shape."""
        return np.zeros(self.shape, self.dtype), np.ones(self.shape, self.dtype)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 0.5, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Dict:
    """Several spaces by name; a value of it is a dict of theirs."""

    parts: Mapping[str, "Space"]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.parts.items(), key=lambda part: part[0])))

    def sample(self, key: jax.Array) -> Any:
        return _sample(self, key)


@dataclass(frozen=True)
class Tuple:
    """Several spaces in order; a value of it is a tuple of theirs."""

    parts: tuple["Space", ...]

    def sample(self, key: jax.Array) -> Any:
        return _sample(self, key)


@dataclass(frozen=True)
class Legal:
    """Observations of a space, and which choices of the next action are legal.

    A value is {"obs": of the space, "legal": bool [sum of choices]}; choices are those of the action space, and of
    several numbers the masks follow one another. A network sees obs alone; where a number has no legal choice all are.
    """

    space: "Space"
    choices: Choices

    @property
    def parts(self) -> dict[str, "Space"]:
        """Its two parts by name."""
        return {"legal": MultiBinary((sum(self.choices),), "bool"), "obs": self.space}

    def sample(self, key: jax.Array) -> Any:
        return _sample(self, key)


@dataclass(frozen=True)
class Privileged:
    """Observations of a space, and a state that no policy may see, but a value may while it is learned.

    A value is {"obs": of the space, "state": of the state's}.
    """

    space: "Space"
    state: "Space"

    @property
    def parts(self) -> dict[str, "Space"]:
        """Its two parts by name."""
        return {"obs": self.space, "state": self.state}

    def sample(self, key: jax.Array) -> Any:
        return _sample(self, key)


@dataclass(frozen=True)
class Members:
    """A value of a space for each of n members of a group, who have one role in a game; leaves [n, ...]."""

    space: "Space"
    n: int

    @property
    def joint(self) -> "Space":
        """The space of the same values whose parts are no longer those of members, but arrays that lead with n."""
        space, n = self.space, self.n

        def each(bound: Bound) -> Bound:
            return (bound,) * n if isinstance(bound, tuple) else bound

        match space:
            case Box():
                return Box(each(space.low), each(space.high), (n, *space.shape), space.dtype)
            case Discrete():
                return MultiDiscrete((space.n,) * n, (space.start,) * n)
            case MultiDiscrete():
                return MultiDiscrete(space.choices * n, space.starts * n, (n, *space.shape))
            case MultiBinary():
                return MultiBinary((n, *space.shape), space.dtype)
            case Members():
                return Members(space.joint, n).joint
            case Tuple():
                return Tuple(tuple(Members(part, n).joint for part in space.parts))
        return Dict({name: Members(part, n).joint for name, part in space.parts.items()})

    def sample(self, key: jax.Array) -> Any:
        """Each member's is drawn apart."""
        return jax.vmap(self.space.sample)(jax.random.split(key, self.n))


Choice: TypeAlias = Discrete | MultiDiscrete | MultiBinary
Simple: TypeAlias = Box | Choice
Space: TypeAlias = Simple | Dict | Tuple | Legal | Privileged | Members


def inner(space: Space) -> list[tuple[Any, "Space"]]:
    """The spaces directly within a space, each with its name or place in a value; none of a simple one."""
    match space:
        case Dict() | Legal() | Privileged():
            return sorted(space.parts.items(), key=lambda part: part[0])
        case Tuple():
            return list(enumerate(space.parts))
        case Members():
            return inner(space.joint)
    return []


def groups(space: Space) -> dict[str, Members]:
    """The members of each group by name, where a space is that of a game; else none."""
    parts = inner(space) if isinstance(space, Dict) else []
    return {name: part for name, part in parts if isinstance(part, Members)}


def sizes(space: Space) -> dict[str, int]:
    """How many members each group of a game has, by its space."""
    return {name: of.n for name, of in groups(space).items()}


def is_simple(space: Space) -> TypeIs[Simple]:
    """Whether a value is one array."""
    return isinstance(space, Simple)


def leaves(space: Space) -> list[Simple]:
    """The simple spaces that a space is made of, by name."""
    if isinstance(space, Members):
        return leaves(space.joint)
    if is_simple(space):
        return [space]
    return [leaf for _, part in inner(space) for leaf in leaves(part)]


def flatten(space: Space, value: Any) -> list[Any]:
    """The parts of a value in the order of leaves."""
    if isinstance(space, Members):
        return flatten(space.joint, value)
    if is_simple(space):
        return [value]
    return [part for name, of in inner(space) for part in flatten(of, value[name])]


def unflatten(space: Space, parts: Iterable[Any]) -> Any:
    """The value of a space that has these parts."""
    if isinstance(space, Members):
        return unflatten(space.joint, parts)
    parts = iter(parts)
    if is_simple(space):
        return next(parts)
    values = {name: unflatten(of, parts) for name, of in inner(space)}
    return tuple(values.values()) if isinstance(space, Tuple) else values


def mapped(space: Space, change: Callable[[Simple], Simple]) -> Space:
    """The space with each simple part changed."""
    match space:
        case Dict():
            return Dict({name: mapped(part, change) for name, part in space.parts.items()})
        case Tuple():
            return Tuple(tuple(mapped(part, change) for part in space.parts))
        case Legal():
            return Legal(mapped(space.space, change), space.choices)
        case Privileged():
            return Privileged(mapped(space.space, change), mapped(space.state, change))
        case Members():
            return Members(mapped(space.space, change), space.n)
    return change(space)


def narrowed(space: Space) -> Space:
    """The space with numbers of 64 bits as those of 32 that JAX makes of them."""

    def narrow(leaf: Simple) -> Simple:
        if not isinstance(leaf, Box) or leaf.dtype not in NARROWED:
            return leaf
        dtype = NARROWED[leaf.dtype]
        low, high = leaf.bounds
        if np.issubdtype(dtype, np.integer):
            ends = np.iinfo(dtype)
            low, high = np.maximum(low, ends.min), np.minimum(high, ends.max)
        return Box(bound(low.astype(dtype)), bound(high.astype(dtype)), leaf.shape, dtype)

    return mapped(space, narrow)


def shapes(space: Space) -> Any:
    """The shapes of a value of a space."""
    return unflatten(space, (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves(space)))


def choices(space: Space) -> list[int]:
    """How many there are in each choice that a value of a space makes, its real numbers left out."""
    return [n for leaf in leaves(space) if not isinstance(leaf, Box) for n in leaf.choices]


def chosen(space: Space, indices: jax.Array) -> Any:
    """The value of a space without a Box whose choices are those of indices, [*batch, choices], of Discrete [*batch].

    Indices are from 0 on, values from where the space has them.
    """
    if isinstance(space, Discrete):
        return indices + space.start if space.start else indices
    parts, batch = leaves(space), indices.shape[:-1]
    ends = np.cumsum([math.prod(leaf.shape) for leaf in parts])[:-1]
    pieces = zip(parts, jnp.split(indices, ends, axis=-1), strict=True)
    shaped = ((part.reshape(*batch, *leaf.shape) + leaf.bounds[0]).astype(leaf.dtype) for leaf, part in pieces)
    return unflatten(space, shaped)


def index(space: Space, action: jax.Array) -> jax.Array:
    """Which choice an action of a Discrete is, from 0 on."""
    return action - space.start if isinstance(space, Discrete) and space.start else action


def visible(space: Space) -> Space:
    """What a network sees of a space: all but what is legal."""
    return space.space if isinstance(space, Legal) else space


def seen(space: Space, obs: Any) -> Any:
    """What a network sees of observations of a space."""
    return obs["obs"] if isinstance(space, Legal) else obs


def showing(space: Space, shown: Space) -> Space:
    """The space whose observations show a network something else, and keep what is legal."""
    return Legal(shown, space.choices) if isinstance(space, Legal) else shown


def shown(space: Space, obs: Any, value: Any) -> Any:
    """Observations of a space that show a network a value in the place of what it saw."""
    return obs | {"obs": value} if isinstance(space, Legal) else value


def masked(space: Space, obs: Any, numbers: jax.Array) -> jax.Array:
    """The numbers [*batch, choices] of an action's choices, ILLEGAL where observations of a space say so."""
    if not isinstance(space, Legal):
        return numbers
    legal = obs["legal"]
    groups = np.repeat(np.arange(len(space.choices)), space.choices)
    of_group = jnp.asarray(groups[:, None] == np.arange(len(space.choices)), jnp.float32)
    none = (legal.astype(jnp.float32) @ of_group)[..., groups] == 0
    return jnp.where(legal | none, numbers, ILLEGAL)


def has_choice(space: Space, obs: Any) -> Any:
    """Whether more than one action is legal after observations, [*batch]; () where a space says nothing of it."""
    if not isinstance(space, Legal):
        return ()
    parts = jnp.split(obs["legal"], np.cumsum(space.choices)[:-1], axis=-1)
    several = [(part.sum(-1) != 1) & (n > 1) for part, n in zip(parts, space.choices, strict=True)]
    return jnp.any(jnp.stack(several), axis=0)


def random_action(action_space: Space, observation_space: Space, obs: Any, key: jax.Array) -> Any:
    """A random action after one observation, a legal one where that says what is; of a game one for each member."""
    if isinstance(action_space, Members):
        assert isinstance(observation_space, Members)
        of_member = partial(random_action, action_space.space, observation_space.space)
        return jax.vmap(of_member)(obs, keys_of(key, action_space.n))
    if teams := groups(action_space):
        parts, keys = groups(observation_space), keys_of(key, len(teams))
        drawn = zip(teams.items(), keys, strict=True)
        return {name: random_action(of, parts[name], obs[name], key) for (name, of), key in drawn}
    if not isinstance(observation_space, Legal):
        return action_space.sample(key)
    numbers = observation_space.choices
    logits = masked(observation_space, obs, jnp.zeros(sum(numbers)))
    keys, parts = jax.random.split(key, len(numbers)), jnp.split(logits, np.cumsum(numbers)[:-1])
    indices = jnp.stack([jax.random.categorical(key, part) for key, part in zip(keys, parts, strict=True)])
    return chosen(action_space, indices[0] if isinstance(action_space, Discrete) else indices)


def keys_of(key: jax.Array, n: int) -> jax.Array:
    """A key for each of n, [n]: the key itself for one, so that what one does alone it does as one of one."""
    return key[None] if n == 1 else jax.random.split(key, n)


def bound(values: Any) -> Bound:
    """An array as the bound of a Box: one number where all are the same, or nested tuples."""
    values = np.asarray(values)
    return values.flat[0].item() if values.size and (values == values.flat[0]).all() else _nested(values.tolist())


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def _sample(space: Space, key: jax.Array) -> Any:
    """A value whose parts are drawn apart."""
    parts = inner(space)
    keys = jax.random.split(key, len(parts))
    values = {name: of.sample(key) for (name, of), key in zip(parts, keys, strict=True)}
    return tuple(values.values()) if isinstance(space, Tuple) else values
