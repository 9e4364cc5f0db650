"""The layout of the values of spaces in the buffers of host environments."""

from typing import Any, TypeAlias

from evorl import spaces
from evorl.envs.host.serial_envs import Layout, Leaf
from evorl.spaces import Box, Members, MultiBinary, Space

SpacesAndLayout: TypeAlias = tuple[Space, Space, Layout]  # observation space, action space, layout


def describe_spaces(obs: Space, action: Space, rewards: tuple[int, ...] = (), is_game: bool = False) -> SpacesAndLayout:
    """Return the spaces with 64-bit dtypes narrowed to 32 bits, as JAX holds them, and their buffer layout.

    Args:
        obs: Observation space, with the environment's own dtypes.
        action: Action space, with the environment's own dtypes.
        rewards: Shape of a reward.
        is_game: Whether the environment is a multi-agent game.
    """
    leaves = tuple(_list_leaves(obs, ())), tuple(_list_leaves(action, ()))
    layout = Layout(*leaves, _container_structure(action), rewards, is_game)
    return spaces.narrow_dtypes(obs), spaces.narrow_dtypes(action), layout


def _list_leaves(space: Space, path: tuple[Any, ...]) -> list[Leaf]:
    if isinstance(space, Members):
        return _list_leaves(space.joint_space, path)
    if not spaces.is_simple(space):
        return [leaf for name, part in spaces.subspaces(space) for leaf in _list_leaves(part, (*path, name))]
    (held,) = spaces.leaf_spaces(spaces.narrow_dtypes(space))
    return [Leaf(path, held.shape, held.dtype, space.dtype if isinstance(space, (Box, MultiBinary)) else "int64")]


def _container_structure(space: Space) -> Any:
    """Return the containers of a value of a space: a dict, a list (for a tuple), or None (for one array)."""
    parts = {name: _container_structure(part) for name, part in spaces.subspaces(space)}
    if isinstance(space, spaces.Tuple):
        return list(parts.values())
    return parts if parts else None
