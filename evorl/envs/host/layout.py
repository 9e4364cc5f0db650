"""How the values of spaces lie on a board."""

from typing import Any, TypeAlias

from evorl import spaces
from evorl.envs.host.played import Layout, Leaf
from evorl.spaces import Box, Members, MultiBinary, Space

Described: TypeAlias = tuple[Space, Space, Layout]  # of observations, of actions, of both


def described(obs: Space, action: Space, rewards: tuple[int, ...] = ()) -> Described:
    """Spaces with numbers of 64 bits as JAX holds their values, and what these, and rewards of a shape, are made of."""
    layout = Layout(tuple(_leaves(obs, ())), tuple(_leaves(action, ())), _nested(action), rewards)
    return spaces.narrowed(obs), spaces.narrowed(action), layout


def _leaves(space: Space, path: tuple[Any, ...]) -> list[Leaf]:
    if isinstance(space, Members):
        return _leaves(space.joint, path)
    if not spaces.is_simple(space):
        return [leaf for name, part in spaces.inner(space) for leaf in _leaves(part, (*path, name))]
    (held,) = spaces.leaves(spaces.narrowed(space))
    return [Leaf(path, held.shape, held.dtype, space.dtype if isinstance(space, (Box, MultiBinary)) else "int64")]


def _nested(space: Space) -> Any:
    """The containers of a value: a dict, a list or None."""
    parts = {name: _nested(part) for name, part in spaces.inner(space)}
    if isinstance(space, spaces.Tuple):
        return list(parts.values())
    return parts if parts else None
