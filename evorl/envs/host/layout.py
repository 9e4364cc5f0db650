"""From Gymnasium's spaces to evorl's, and how their values lie on a board."""

from typing import Any

import numpy as np

from evorl import spaces
from evorl.envs.host.played import Layout, Leaf
from evorl.errors import OptionError


def layout(env: Any) -> tuple[spaces.Space, spaces.Space, Layout]:
    """The spaces of a Gymnasium environment and what its values are made of; raises OptionError."""
    obs, action = env.observation_space, env.action_space
    found = Layout(tuple(_leaves(obs, ())), tuple(_leaves(action, ())), _nested(action))
    return _space(obs), _space(action), found


def _space(space: Any) -> spaces.Space:
    match type(space).__name__:
        case "Box":
            low, high = (_bound(bound) for bound in (space.low, space.high))
            return spaces.Box(low, high, tuple(space.shape), _stored(space.dtype))
        case "Discrete":
            return spaces.Discrete(int(space.n))
        case "MultiDiscrete" if len(space.shape) == 1:
            return spaces.MultiDiscrete(tuple(map(int, space.nvec)))
        case "MultiBinary" if len(space.shape) == 1:
            return spaces.MultiDiscrete((2,) * space.shape[0])
        case "Dict":
            return spaces.Dict({name: _space(part) for name, part in space.spaces.items()})
    raise OptionError(f"env: a space of the kind {type(space).__name__} is not supported")


def _leaves(space: Any, path: tuple[Any, ...]) -> list[Leaf]:
    if type(space).__name__ == "Dict":
        return [leaf for name in sorted(space.spaces) for leaf in _leaves(space.spaces[name], (*path, name))]
    start = int(space.start) if type(space).__name__ == "Discrete" else 0
    box = type(space).__name__ == "Box"
    return [Leaf(path, tuple(space.shape), _stored(space.dtype) if box else "int32", str(space.dtype), start)]


def _nested(space: Any) -> Any:
    if type(space).__name__ == "Dict":
        return {name: _nested(space.spaces[name]) for name in sorted(space.spaces)}
    return None


def _stored(dtype: Any) -> str:
    """The dtype that JAX has in place of one."""
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
    return narrow.get(str(np.dtype(dtype)), str(np.dtype(dtype)))


def _bound(bound: np.ndarray) -> Any:
    return float(bound.flat[0]) if (bound == bound.flat[0]).all() else _tuples(bound.tolist())


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list) else float(values)
