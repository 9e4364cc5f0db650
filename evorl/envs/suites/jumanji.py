"""Adapter for Jumanji (Bonnet et al. 2024, arXiv:2306.09884)."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from evorl import mesh, spaces
from evorl.envs.suites.common import SuiteState, cast_obs, import_extra, set_default_limit, sum_rewards
from evorl.errors import require, unknown_name_error
from evorl.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, ObsWithActionMask, Space, to_bound
from evorl.types import Key, TimeStep

MASK = "action_mask"  # field of observations
SOKOBAN_LEVELS = "InstaDeepAI/boxoban-levels", "unfiltered-train.npy"  # Jumanji would download these
DEFAULT_MAX_STEPS = 1000  # for environments without a time limit


@dataclass(frozen=True)
class Jumanji:
    """A Jumanji environment by its name, such as Jumanji("Snake-v1").

    A single agent controls multi-agent environments: its action has a component for each of their agents, and
    its reward is the sum of theirs. If the action mask covers combinations of components, as in Tetris, the
    action is the index of a combination. The mask is not part of the observation that a network receives. The
    time limit truncates an episode, though most of these environments terminate it.

    Args:
        name: One of `names()`.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the environment's own limit, or
            1000 if it has none.

    Raises:
        OptionError: If a value is not allowed, or Jumanji or files that the environment needs are missing.

    Source: Bonnet et al. 2024, arXiv:2306.09884.
    """

    name: str
    max_episode_steps: int = 0

    default_params = None
    fresh_reset = True
    render_fps = 10.0

    def __post_init__(self) -> None:
        set_default_limit(self, lambda: self._default_time_limit or DEFAULT_MAX_STEPS)

    @staticmethod
    def names() -> list[str]:
        """Return the names of all environments, sorted."""
        return sorted(import_extra("jumanji", "jumanji").registered_environments())

    @cached_property
    def _default_env(self) -> Any:
        """Return the environment with the library's own time limit."""
        jumanji = import_extra("jumanji", "jumanji")
        if self.name not in self.names():
            raise unknown_name_error("environment of Jumanji", self.name, self.names(), "--list env=jumanji")
        if self.name.startswith("Sokoban"):
            cached = import_extra("huggingface_hub", "jumanji").try_to_load_from_cache(*SOKOBAN_LEVELS)
            where = f"{SOKOBAN_LEVELS[1]} of {SOKOBAN_LEVELS[0]} in the cache of Hugging Face"
            require(isinstance(cached, str), "env.name", self.name, f"needs {where}, which is missing")
        with mesh.eager_mode():
            return jumanji.make(self.name)

    @property
    def _default_time_limit(self) -> int:
        """Return the library's own time limit, or 0 if there is none."""
        return int(vars(self._default_env).get("time_limit") or 0)

    @cached_property
    def env(self) -> Any:
        """Return the wrapped environment; its own time limit, if it has one, is never reached."""
        if not self._default_time_limit:
            return self._default_env
        with mesh.eager_mode():
            env = import_extra("jumanji", "jumanji").make(self.name, time_limit=self.max_episode_steps + 1)
        if self.name.startswith("SearchAndRescue"):  # its rewards depend on the time limit
            of_limit = env._reward_fn
            env._reward_fn = lambda found, step, _: of_limit(found, step, self.max_episode_steps)
        return env

    @cached_property
    def observation_space(self) -> Space:
        with mesh.eager_mode():
            seen = _to_space(self.env.observation_spec)
        if not isinstance(seen, Dict) or MASK not in seen.parts:
            return seen
        parts = {name: part for name, part in seen.parts.items() if name != MASK}
        if self.name.startswith("TSP"):  # it starts at city -1, which its spec does not declare
            parts["position"] = Discrete(self.env.num_cities + 1, -1)
        return ObsWithActionMask(Dict(parts), tuple(spaces.choice_counts(self.action_space)))

    @cached_property
    def action_space(self) -> Space:
        return Discrete(math.prod(self._action_sizes)) if self._has_joint_mask else self._env_action_space

    @cached_property
    def _env_action_space(self) -> Space:
        """Return the action space of the wrapped environment."""
        specs = import_extra("jumanji.specs", "jumanji")
        with mesh.eager_mode():
            spec = self.env.action_spec
            if isinstance(spec, specs.DiscreteArray):
                return Discrete(int(spec.num_values))
            if isinstance(spec, specs.MultiDiscreteArray):
                return MultiDiscrete(tuple(np.ravel(spec.num_values).tolist()), (), tuple(spec.shape))
            low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
            if np.issubdtype(spec.dtype, np.integer):  # MultiCVRP: its mask has one choice fewer than its spec
                mask = _get_mask_spec(self.env)
                numbers = high - low + 1 if mask is None else np.full(spec.shape, mask.shape[-1])
                return MultiDiscrete(
                    tuple(np.ravel(numbers).tolist()), tuple(np.ravel(low).tolist()), tuple(spec.shape)
                )
            return Box(to_bound(low), to_bound(high), tuple(spec.shape))

    @property
    def _action_sizes(self) -> tuple[int, ...]:
        """Return the number of choices of each action component, or () if the action is not multi-discrete."""
        return self._env_action_space.choices if isinstance(self._env_action_space, MultiDiscrete) else ()

    @property
    def _has_joint_mask(self) -> bool:
        """Return whether the action mask covers combinations of several action components."""
        mask = _get_mask_spec(self.env)
        return mask is not None and len(self._action_sizes) > 1 and tuple(mask.shape) == self._action_sizes

    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        del params
        inner, timestep = self.env.reset(key)
        return SuiteState.init(inner), self._build_obs(timestep.observation)

    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        del key, params
        given = jnp.stack(jnp.unravel_index(action, self._action_sizes)) if self._has_joint_mask else action
        inner, timestep = self.env.step(env_state.inner, given)
        state, over = env_state.advance(inner), timestep.last() & (timestep.discount == 0).all()
        obs = self._build_obs(timestep.observation)
        return state, state.to_timestep(obs, sum_rewards(timestep.reward), over, self.max_episode_steps)

    def _build_obs(self, given: Any) -> Any:
        seen = _to_dicts(given)
        if isinstance(self.observation_space, ObsWithActionMask):
            rest = {name: part for name, part in seen.items() if name != MASK}
            seen = {"legal": seen[MASK].reshape(-1), "obs": rest}
        return cast_obs(seen, self.observation_space)

    def render_frames(self, states: Sequence[SuiteState]) -> list[np.ndarray]:
        """Render states with the library's own viewer, which needs matplotlib and draws into its current figure.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        frames = []
        for state in states:
            self.env.render(state.inner)
            canvas: Any = plt.gcf().canvas
            canvas.draw()
            frames.append(np.array(canvas.buffer_rgba())[..., :3])
        plt.close(plt.gcf())
        return frames


def _get_mask_spec(env: Any) -> Any:
    """Return the spec of the action mask, or None if there is none."""
    return vars(env.observation_spec)["_specs"].get(MASK)


def _to_space(spec: Any) -> Space:
    """Convert a Jumanji spec to a space; unbounded integers become an unbounded float Box."""
    specs = import_extra("jumanji.specs", "jumanji")
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    if not isinstance(spec, specs.Array):
        return Dict({name: _to_space(part) for name, part in vars(spec)["_specs"].items()})
    shape, dtype = tuple(spec.shape), np.dtype(spec.dtype)
    if np.issubdtype(dtype, np.bool_):
        return MultiBinary(shape, "bool")
    if not isinstance(spec, specs.BoundedArray):
        return Box(-np.inf, np.inf, shape)
    low, high = (np.broadcast_to(x, shape) for x in (spec.minimum, spec.maximum))
    return Box(to_bound(low), to_bound(high), shape, str(dtype))


def _to_dicts(value: Any) -> Any:
    """Convert nested named tuples and dataclasses to dicts."""
    if isinstance(value, tuple):
        return {name: _to_dicts(part) for name, part in value._asdict().items()}  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(value):
        return {name: _to_dicts(part) for name, part in vars(value).items()}
    return value
