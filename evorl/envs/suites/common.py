"""Helpers shared by the adapters for environments of other libraries."""

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Int

from evorl import mesh, package, spaces, tree
from evorl.errors import OptionError, require
from evorl.spaces import Box, Dict, MultiBinary, Space
from evorl.types import Array, State, TimeStep


@struct.dataclass
class SuiteState:
    """The state of a library's environment, and the number of steps in the episode."""

    inner: State
    steps: Int[Array, ""]

    @classmethod
    def init(cls, inner: Any) -> "SuiteState":
        """Create the state at the start of an episode."""
        return cls(tree.drop_weak_types(inner), jnp.int32(0))

    def advance(self, inner: Any) -> "SuiteState":
        """Return the state one step later."""
        return SuiteState(tree.drop_weak_types(inner), self.steps + 1)

    def to_timestep(self, obs: Any, reward: Any, terminated: Any, limit: int) -> TimeStep:
        """Return the time step; an episode that has not terminated is truncated after `limit` steps."""
        terminated = jnp.asarray(terminated, bool)
        return TimeStep(obs, jnp.asarray(reward, jnp.float32), terminated, ~terminated & (self.steps >= limit))


class SharedLeaves:
    """Removes the leaves of a library's states that have no batch axis under vmap, and adds them again.

    An example are the contacts of MJX-Warp: one array for all environments, which each step recomputes.
    Selecting between two states, as at the end of an episode, cannot broadcast such leaves.
    """

    def __init__(self, reset: Callable[[Any], Any]) -> None:
        """Find the shared leaves of the states that `reset`, a function of a key, returns."""
        with mesh.eager_mode():
            keys = jax.random.split(jax.random.key(0), 2)
            one, two = jax.eval_shape(reset, keys[0]), jax.eval_shape(jax.vmap(reset), keys)
            shapes, self._structure = jax.tree.flatten(one)
            is_shared = [b.shape != (2, *a.shape) for a, b in zip(shapes, jax.tree.leaves(two), strict=True)]
            values = jax.tree.leaves(jax.jit(reset)(keys[0])) if any(is_shared) else shapes
        self._shared: list[Any] = [np.asarray(x) if so else None for x, so in zip(values, is_shared, strict=True)]

    def resize(self, reset: Callable[[Any], Any]) -> "SharedLeaves":
        """Return the same leaves with the shapes that another `reset` gives them; those that change are zeros."""
        with mesh.eager_mode():
            shapes, structure = jax.tree.flatten(jax.eval_shape(reset, jax.random.key(0)))
        of_others, known = copy.copy(self), zip(self._shared, shapes, strict=True)
        of_others._structure = structure
        of_others._shared = [x if x is None or x.shape == to.shape else to for x, to in known]
        return of_others

    def remove(self, state: Any) -> Any:
        """Return the state of one environment with None in place of each shared leaf."""
        leaves = zip(jax.tree.leaves(state), self._shared, strict=True)
        return self._structure.unflatten([leaf if shared is None else None for leaf, shared in leaves])

    def restore(self, state: Any) -> Any:
        """Return the state with its shared leaves, the inverse of `remove`."""
        leaves = iter(jax.tree.leaves(state))
        return self._structure.unflatten([next(leaves) if x is None else _to_array(x) for x in self._shared])


def _to_array(value: Any) -> Array:
    return jnp.zeros(value.shape, value.dtype) if isinstance(value, jax.ShapeDtypeStruct) else jnp.asarray(value)


def in_full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose matrix products have float32 precision on a GPU, too, as physics requires."""

    @functools.wraps(function)
    def compute(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args)

    return compute


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional library; if it is missing, raise OptionError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise OptionError(f"env={extra}/...: {missing} is missing; {package.install_command(extra)}") from error


def freeze(value: Any) -> Any:
    """Make the options of an environment hashable (lists become tuples); raise OptionError if a value cannot be."""
    if isinstance(value, Mapping):
        return FrozenDict({name: freeze(one) for name, one in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(map(freeze, value))
    try:
        hash(value)
    except TypeError:
        raise OptionError(f"env.options={value}: must be numbers, strings, lists or mappings") from None
    return value


def unfreeze(value: Any) -> Any:
    """Convert frozen options to plain dicts, as libraries expect them."""
    return {name: unfreeze(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def set_default_limit(env: Any, own: Callable[[], int]) -> None:
    """Replace `max_episode_steps` 0 of a new environment by its own limit; raise OptionError if it is negative."""
    require(env.max_episode_steps >= 0, "max_episode_steps", env.max_episode_steps, "must not be negative")
    if not env.max_episode_steps:
        object.__setattr__(env, "max_episode_steps", int(own()))


def infer_space(shapes: Any) -> Space:
    """Return an unbounded space for arrays of these shapes, or for dicts of them."""
    if isinstance(shapes, Mapping):
        return Dict({name: infer_space(part) for name, part in shapes.items()})
    if shapes.dtype == bool:
        return MultiBinary(tuple(shapes.shape), "bool")
    return Box(-np.inf, np.inf, tuple(shapes.shape))


def cast_obs(obs: Any, space: Space) -> Any:
    """Cast observations to the dtypes of their space."""
    return jax.tree.map(lambda x, to: jnp.asarray(x, to.dtype), obs, spaces.to_shape_structs(space))


def sum_rewards(reward: Array) -> Array:
    """Return the sum of the rewards of several agents, shape []."""
    return jnp.asarray(reward, jnp.float32).sum()
