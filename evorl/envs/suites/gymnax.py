"""Adapter for gymnax environments."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Int

from evorl import mesh, tree
from evorl.deferred_imports import import_deferring
from evorl.envs.suites import gymnax_pictures
from evorl.envs.suites.common import set_default_limit
from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import Box, Discrete, Space, to_bound
from evorl.types import Array, Key, State, TimeStep

# params that gymnax derives from others but stores, so that step_env does not recompute them. The center of mass of a
# link is in its middle, as by default
DERIVED_PARAMS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "CartPole-v1": {
        "total_mass": lambda params: params.masscart + params.masspole,
        "polemass_length": lambda params: params.masspole * params.length,
    },
    "Acrobot-v1": {
        "link_com_pos_1": lambda params: params.link_length_1 / 2,
        "link_com_pos_2": lambda params: params.link_length_2 / 2,
    },
}

POSITIVE_PARAMS = {  # divisors, masses, lengths and times
    "CartPole-v1": ("masscart", "masspole", "length", "tau"),
    "Pendulum-v1": ("dt", "m", "l"),
    "Acrobot-v1": ("dt", "link_length_1", "link_length_2", "link_mass_1", "link_mass_2", "link_moi"),
}


MNIST_FOLDER = Path("/tmp/mnist")  # gymnax's download folder
TIME_LIMIT_FIELD = "max_steps_in_episode"  # in gymnax's params


@struct.dataclass
class GymnaxState:
    inner: State
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Gymnax:
    """Any gymnax environment by its id, such as Gymnax("CartPole-v1").

    The adapter truncates episodes itself, since `step_env` of gymnax 1.0.1 does not stop at the time limit.

    Args:
        name: Id in gymnax's registry.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the environment's own limit.
        bits: Whether MinAtar's observations, which are 0 or 1, are uint8 instead of float32: a quarter of the
            memory.
        params: Values that replace numbers in gymnax's params, by field name, such as {"memory_length": 30}.

    Raises:
        OptionError: If a value is not allowed or gymnax does not know the id.

    Source: Lange 2022, gymnax.
    """

    name: str
    max_episode_steps: int = 0
    bits: bool = False
    params: Mapping[str, Any] = field(default_factory=FrozenDict)

    fresh_reset = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", FrozenDict(self.params))
        set_default_limit(self, lambda: self._env_and_params[1].max_steps_in_episode)

        minatar = self.name.endswith("MinAtar")
        require(
            minatar or not self.bits,
            "bits",
            self.bits,
            f"needs MinAtar, whose observations are 0 or 1, not {self.name}",
        )

    @staticmethod
    def names() -> list[str]:
        """Return the ids of all environments."""
        return list(_import_gymnax().registered_envs)

    @cached_property
    def _env_and_params(self) -> tuple[Any, Any]:
        gymnax = _import_gymnax()
        if self.name not in gymnax.registered_envs:
            raise unknown_name_error("gymnax environment", self.name, gymnax.registered_envs, "gymnax.registered_envs")
        if self.name.startswith("MNIST"):
            where = f"the four files of MNIST in {MNIST_FOLDER}"
            require(
                len(list(MNIST_FOLDER.glob("*.gz"))) == 4, "env.name", self.name, f"needs {where}, which are missing"
            )
        env, params = gymnax.make(self.name)
        numbers = {field.name for field in dataclasses.fields(params)} - {
            TIME_LIMIT_FIELD,
            *DERIVED_PARAMS.get(self.name, ()),
        }
        for name, value in self.params.items():
            require(name != TIME_LIMIT_FIELD, f"params.{name}", value, "use max_episode_steps instead")
            if name not in numbers:
                raise unknown_name_error(f"param of {self.name}", name, numbers)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            require(
                number, f"params.{name}", value, f"must be a number, such as gymnax's default {getattr(params, name)}"
            )
        return env, self._update_derived(dataclasses.replace(params, **self.params)) if self.params else params

    @property
    def env(self) -> Any:
        """Return the wrapped gymnax environment."""
        return self._env_and_params[0]

    @property
    def default_params(self) -> Any:
        """Return gymnax's params with the replaced values; their time limit has no effect."""
        return dataclasses.replace(self._env_and_params[1], max_steps_in_episode=self.max_episode_steps)

    @property
    def physics(self) -> dict[str, float]:
        """Return the real-valued params that may vary freely, with their defaults.

        The time limit, params that change a space, and params that are derived from others are left out.
        """
        fields, params = dataclasses.fields(self._env_and_params[1]), self._env_and_params[1]
        real = {field.name: value for field in fields if isinstance(value := vars(params)[field.name], float)}
        fixed = {TIME_LIMIT_FIELD, *DERIVED_PARAMS.get(self.name, ())}
        return {
            name: value
            for name, value in real.items()
            if name not in fixed and not self._affects_spaces(name, value + 1)
        }

    @property
    def positive_params(self) -> tuple[str, ...]:
        """Return the names of the params that must be above 0, such as masses."""
        return POSITIVE_PARAMS.get(self.name, ())

    def make_params(self, numbers: Mapping[str, Array]) -> Any:
        """Return the default params with other values, and with the params that are derived from them.

        Args:
            numbers: Values by name.
        """
        return self._update_derived(dataclasses.replace(self.default_params, **numbers))

    def _update_derived(self, params: Any) -> Any:
        """Return the params with the derived ones recomputed."""
        derived = {name: follows(params) for name, follows in DERIVED_PARAMS.get(self.name, {}).items()}
        return dataclasses.replace(params, **derived)

    @property
    def observation_space(self) -> Space:
        return self._spaces[0]

    @property
    def action_space(self) -> Space:
        return self._spaces[1]

    @cached_property
    def _spaces(self) -> tuple[Space, Space]:
        """Return the spaces of observations and actions; gymnax compiles operations whenever it is asked for one."""
        seen, acts = (_to_space(of, self._env_and_params[1]) for of in self._space_functions)
        return dataclasses.replace(seen, low=0, high=1, dtype="uint8") if self.bits else seen, acts

    def reset(self, key: Key, params: Any) -> tuple[GymnaxState, Any]:
        obs, inner = self.env.reset_env(key, params)
        return GymnaxState(tree.drop_weak_types(inner), jnp.int32(0)), self._cast_obs(obs)

    def step(self, key: Key, env_state: GymnaxState, action: Any, params: Any) -> tuple[GymnaxState, TimeStep]:
        obs, inner, reward, done, _ = self.env.step_env(key, env_state.inner, action, params)
        steps = env_state.steps + 1
        terminated = jnp.asarray(done, bool)
        truncated = ~terminated & (steps >= self.max_episode_steps)
        timestep = TimeStep(self._cast_obs(obs), jnp.float32(reward), terminated, truncated)
        return GymnaxState(tree.drop_weak_types(inner), steps), timestep

    def _affects_spaces(self, name: str, value: float) -> bool:
        """Return whether a space changes if this param has this value."""
        other = dataclasses.replace(self._env_and_params[1], **{name: value})
        return any(_to_space(of, other) != _to_space(of, self._env_and_params[1]) for of in self._space_functions)

    @property
    def _space_functions(self) -> tuple[Callable[[Any], Any], ...]:
        return self.env.observation_space, self.env.action_space

    def _cast_obs(self, obs: Any) -> Any:
        """Cast an observation to the dtype of its space, which gymnax 1.0.1 does not always give (Catch, FourRooms)."""
        space = self.observation_space
        return jnp.asarray(obs, space.dtype) if isinstance(space, Box) else obs

    @property
    def render_fps(self) -> float:
        """Return the environment steps per second of an animation."""
        return gymnax_pictures.get_fps(self.name)

    def render_frames(self, states: Sequence[GymnaxState]) -> list[np.ndarray]:
        """Render states with Pillow; environments without a painter are rendered as text.

        Args:
            states: States of one episode, in order, with the default params.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        inner = [state.inner for state in states]
        return gymnax_pictures.render_frames(self.name, self.env, self.default_params, inner)


def _import_gymnax() -> Any:
    """Import gymnax without the plotting libraries of its renderers, which take longer to import than JAX."""
    return import_deferring("gymnax", "matplotlib", "seaborn")


def _to_space(describe: Callable[[Any], Any], params: Any) -> Space:
    with mesh.eager_mode():  # eager even within a trace
        space = describe(params)
        if hasattr(space, "n"):
            return Discrete(int(space.n))
        if hasattr(space, "low"):
            return Box(to_bound(space.low), to_bound(space.high), tuple(space.shape), str(np.dtype(space.dtype)))
    raise OptionError(f"gymnax environments with a space of type {type(space).__name__} are not supported")
