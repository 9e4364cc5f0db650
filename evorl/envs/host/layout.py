"""How the values of spaces lie on a board."""

from typing import Any

from evorl import spaces
from evorl.envs.host.played import Layout, Leaf
from evorl.spaces import Box, Members, MultiBinary, Space


def layout(env: Any) -> tuple[Space, Space, Layout]:
    """The spaces of a Gymnasium environment, as JAX holds their values, and what these are made of."""
    from evorl.envs.gymnasium import from_gymnasium

    obs, action = from_gymnasium(env.observation_space), from_gymnasium(env.action_space)
    return spaces.narrowed(obs), spaces.narrowed(action), layout_of(obs, action)


def layout_of(obs: Space, action: Space, rewards: tuple[int, ...] = ()) -> Layout:
    """What values of spaces with numbers of 64 bits, and rewards of a shape, are made of."""
    return Layout(tuple(_leaves(obs, ())), tuple(_leaves(action, ())), _nested(action), rewards)


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
