"""Export of evorl's environments and spaces to Gymnasium, and import of Gymnasium's spaces."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from evorl import spaces, tree
from evorl.envs import render
from evorl.envs.suites.common import import_extra
from evorl.errors import OptionError, require, require_int
from evorl.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    ObsWithActionMask,
    PrivilegedObs,
    Simple,
    Space,
    Tuple,
    to_bound,
)
from evorl.types import Array, Env, Key, TimeStep

AUTORESET_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def from_gymnasium_space(space: Any) -> Space:
    """Convert a Gymnasium space to one of evorl, with the same dtypes.

    `spaces.narrow_dtypes` then converts it to dtypes that JAX holds.

    Args:
        space: A Gymnasium space.

    Raises:
        OptionError: If it contains a space other than Box, Discrete, MultiDiscrete, MultiBinary, Dict and
            Tuple.
    """
    match space:
        case gymnasium.spaces.Box():
            return Box(to_bound(space.low), to_bound(space.high), tuple(space.shape), str(np.dtype(space.dtype)))
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gymnasium.spaces.MultiDiscrete():
            numbers, starts = (tuple(np.ravel(x).tolist()) for x in (space.nvec, space.start))
            return MultiDiscrete(numbers, starts, tuple(space.shape))
        case gymnasium.spaces.MultiBinary():
            return MultiBinary(tuple(space.shape))
        case gymnasium.spaces.Dict():
            return Dict({name: from_gymnasium_space(part) for name, part in space.spaces.items()})
        case gymnasium.spaces.Tuple():
            return Tuple(tuple(from_gymnasium_space(part) for part in space.spaces))
    raise OptionError(f"space={type(space).__name__}: must be Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")


def to_gymnasium_space(space: Space) -> Any:
    """Convert a space to one of Gymnasium; masks and privileged states become entries of a Dict."""
    match space:
        case Box():
            dtype: Any = np.dtype(_gymnasium_dtype(space))
            low, high = (np.asarray(bound, dtype) for bound in space.bounds)
            return gymnasium.spaces.Box(low, high, space.shape, dtype)
        case Discrete():
            return gymnasium.spaces.Discrete(space.n, start=space.start)
        case MultiDiscrete():
            numbers, starts = (np.reshape(x, space.shape) for x in (space.choices, space.starts))
            return gymnasium.spaces.MultiDiscrete(numbers, start=starts)
        case MultiBinary():
            return gymnasium.spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
        case Dict() | ObsWithActionMask() | PrivilegedObs():
            return gymnasium.spaces.Dict({name: to_gymnasium_space(part) for name, part in space.parts.items()})
        case Tuple():
            return gymnasium.spaces.Tuple([to_gymnasium_space(part) for part in space.parts])


def to_gymnasium(env: Env, env_params: Any = None, render_mode: str | None = None) -> "GymnasiumEnv":
    """Export an environment as a Gymnasium environment.

    `reset(seed=n)` starts the same sequence of episodes each time; `reset()` continues the sequence.

    Args:
        env: The environment.
        env_params: Its env params; None takes its default ones.
        render_mode: None, or "rgb_array" for frames, if the environment can render them.

    Raises:
        OptionError: If render_mode is not available.
    """
    return GymnasiumEnv(env, env_params, render_mode)


def to_gymnasium_vector(
    env: Env, n: int, env_params: Any = None, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
) -> "GymnasiumVectorEnv":
    """Export copies of an environment as a Gymnasium VectorEnv, compiled as one program.

    Copy i of `reset(seed=s)` has the episodes of `to_gymnasium(env)` after `reset(seed=s + i)`.

    Args:
        env: The environment.
        n: Number of copies.
        env_params: Env params of all copies; None takes the environment's default ones.
        autoreset_mode: When an ended copy resets: a value or a name of Gymnasium's AutoresetMode. NEXT_STEP,
            which is Gymnasium's default and which its vector wrappers need, resets at the next step; the
            action of that step is ignored and its reward is 0. SAME_STEP resets within the step that ends the
            episode; the final observation is then in infos["final_obs"].

    Raises:
        OptionError: If a value is not allowed.
    """
    return GymnasiumVectorEnv(env, n, env_params, autoreset_mode)


def to_pettingzoo(env: Env, env_params: Any = None, render_mode: str | None = None) -> Any:
    """Export a multi-agent game as a PettingZoo ParallelEnv, whose agents are named GROUP_0, GROUP_1 and so on.

    If the game masks actions, an agent observes {"observation": ..., "action_mask": ...}.

    Args:
        env: The game.
        env_params: Its env params; None takes its default ones.
        render_mode: None, or "rgb_array" for frames, if the game can render them.

    Raises:
        OptionError: If env is not a game, render_mode is not available, or PettingZoo is not installed.
    """
    return import_extra("evorl.envs.suites.pettingzoo", "pettingzoo").PettingZooEnv(env, env_params, render_mode)


class GymnasiumEnv(gymnasium.Env):
    """One environment with Gymnasium's interface, as `to_gymnasium` returns it."""

    def __init__(self, env: Env, env_params: Any, render_mode: str | None) -> None:
        self.metadata, self.render_mode = make_render_metadata(env, render_mode), render_mode
        self.observation_space = to_gymnasium_space(env.observation_space)
        self.action_space = to_gymnasium_space(env.action_space)
        self._env, self._params = env, env.default_params if env_params is None else env_params
        self._begin, self._step = jax.jit(partial(split_and_reset, env)), jax.jit(partial(split_and_step, env))
        self._key: Any = None
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            self._key = key_from_any_seed(self.np_random_seed if seed is None else seed)
        self._key, self._state, obs = self._begin(self._key, self._params)
        return to_gymnasium_value(self._env.observation_space, obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        require(self._state is not None, "step", action, "call reset first")
        given = from_gymnasium_action(self._env.action_space, action)
        self._key, self._state, timestep = self._step(self._key, self._state, given, self._params)
        ends = bool(timestep.terminated), bool(timestep.truncated)
        info = jax.tree.map(np.asarray, timestep.info)
        return to_gymnasium_value(self._env.observation_space, timestep.obs), float(timestep.reward), *ends, info

    def render(self) -> Any:
        """Return the frame of the current state, uint8 [height, width, 3], or None without a render_mode."""
        return None if self.render_mode is None else render_state(self._env, self._state)


class GymnasiumVectorEnv(VectorEnv):
    """A batch of n environments with Gymnasium's vector interface, as `to_gymnasium_vector` returns it."""

    def __init__(self, env: Env, n: int, env_params: Any, autoreset_mode: str | AutoresetMode) -> None:
        require_int("n", n)
        named = {name: mode for mode in AUTORESET_MODES for name in (mode.name, mode.value)}
        mode = autoreset_mode if isinstance(autoreset_mode, AutoresetMode) else named.get(autoreset_mode)
        names = " or ".join(one.name for one in AUTORESET_MODES)
        require(mode in AUTORESET_MODES, "autoreset_mode", autoreset_mode, f"must be {names}")
        self.num_envs, self.metadata = n, {"autoreset_mode": mode}
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.single_observation_space = to_gymnasium_space(env.observation_space)
        self.single_action_space = to_gymnasium_space(env.action_space)
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        self._env, self._params = env, env.default_params if env_params is None else env_params
        self._begin = jax.jit(jax.vmap(partial(split_and_reset, env), (0, None)))
        self._step = jax.jit(partial(_step_batch, env, self._same_step))
        self._ended = np.zeros(n, bool)  # whether the last step ended the episode
        self._keys: Any = None
        self._states: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies and return the first observations, shape [n, ...].

        With one seed s, copy i gets s + i; a sequence has a seed for each copy, or None for a random
        one.
        """
        alone = seed is None or isinstance(seed, (int, np.integer))
        super().reset(seed=int(seed) if alone and seed is not None else None)  # pyright: ignore[reportArgumentType]
        if seed is not None or self._keys is None:
            first = self.np_random_seed if seed is None else seed
            seeds = [int(first) + i for i in range(self.num_envs)] if alone else list(first)  # pyright: ignore
            require(len(seeds) == self.num_envs, "seed", seed, f"must be one seed, or a list of {self.num_envs}")
            fresh = np.random.SeedSequence().generate_state(self.num_envs)
            self._keys = jnp.stack(
                [key_from_any_seed(new if one is None else one) for one, new in zip(seeds, fresh, strict=True)]
            )
        self._keys, self._states, obs = self._begin(self._keys, self._params)
        self._ended = np.zeros(self.num_envs, bool)
        return self._to_gymnasium_obs(obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies with actions, shape [n, ...]; ended copies reset as the autoreset mode says."""
        require(self._keys is not None, "step", "actions", "call reset first")
        given = from_gymnasium_action(self._env.action_space, actions, self.num_envs)
        self._keys, self._states, timestep, obs = self._step(self._keys, self._states, given, self._ended, self._params)
        terminated, truncated = np.asarray(timestep.terminated), np.asarray(timestep.truncated)
        before, ended = self._ended, terminated | truncated
        infos, self._ended = self._to_gymnasium_infos(timestep.info, ~(ended if self._same_step else before)), ended
        if ended.any() and self._same_step:
            last = jax.tree.map(np.asarray, timestep.obs)
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i] = to_gymnasium_value(self._env.observation_space, tree.index(last, int(i)))
            infos |= {"final_obs": final, "_final_obs": ended}
            infos |= {"final_info": self._to_gymnasium_infos(timestep.info, ended), "_final_info": ended}
        return self._to_gymnasium_obs(obs), np.asarray(timestep.reward, np.float64), terminated, truncated, infos

    def _to_gymnasium_infos(self, info: Any, there: np.ndarray) -> dict[str, Any]:
        """Return the entries of an info, each with the mask of the copies that have it."""
        found: dict[str, Any] = {}
        for name, values in info.items():
            found |= {name: jax.tree.map(np.asarray, values), f"_{name}": there}
        return found

    def _to_gymnasium_obs(self, obs: Any) -> Any:
        return to_gymnasium_value(self._env.observation_space, obs)


def make_render_metadata(env: Env, render_mode: str | None) -> dict[str, Any]:
    """Return the render modes and frames per second of an environment; raise OptionError for another render_mode."""
    fps = render.get_fps(env)
    there = [] if fps is None else ["rgb_array"]
    wanted = f"must be None or one of {there}" if there else "must be None: this environment cannot be rendered"
    require(render_mode is None or render_mode in there, "render_mode", render_mode, wanted)
    return {"render_modes": there, **({} if fps is None else {"render_fps": round(fps)})}


def render_state(env: Env, state: Any) -> np.ndarray:
    """Return the frame of a state, uint8 [height, width, 3]; raise OptionError before a reset or without OpenGL."""
    require(state is not None, "render", state, "call reset first")
    return render.render_states(env, [state])[0]


def key_from_any_seed(seed: Any) -> Key:
    """Return the key of an integer seed modulo 2^32, since seeds of other libraries may be larger."""
    return jax.random.key(int(seed) % 2**32)


def split_and_reset(env: Env, key: Key, params: Any) -> tuple[Key, Any, Any]:
    """Reset an environment; return a key for later calls, the state and the observation."""
    key, key_reset = jax.random.split(key)
    return key, *env.reset(key_reset, params)


def split_and_step(env: Env, key: Key, state: Any, action: Any, params: Any) -> tuple[Key, Any, TimeStep]:
    """Step an environment; return a key for later calls, the state and the time step."""
    key, key_step = jax.random.split(key)
    return key, *env.step(key_step, state, action, params)


def _step_batch(
    env: Env, same_step: bool, keys: Key, states: Any, actions: Any, ended: Array, params: Any
) -> tuple[Key, Any, TimeStep, Any]:
    """Step n environments; return their keys, states, time steps and the observations to act on next.

    With same_step, environments whose episode ends are reset within this step. Otherwise, environments that
    had ended before are reset instead of stepped.
    """
    stepped, after, timestep = jax.vmap(partial(split_and_step, env), (0, 0, 0, None))(keys, states, actions, params)
    if same_step:
        keys, ended = stepped, timestep.terminated | timestep.truncated
    else:
        step_from_reset = (jnp.zeros_like(timestep.reward), jnp.zeros_like(ended), jnp.zeros_like(ended))
        reward, terminated, truncated = tree.select(
            ended, step_from_reset, (timestep.reward, timestep.terminated, timestep.truncated)
        )
        timestep = replace(timestep, reward=reward, terminated=terminated, truncated=truncated)

    def reset_ended(_: Array, now: Any) -> Any:
        return tree.select(ended, jax.vmap(partial(split_and_reset, env), (0, None))(keys, params), now)

    count = ended.any().astype(jnp.int32)
    keys, states, obs = tree.masked_fori_loop(count, reset_ended, (stepped, after, timestep.obs))
    return keys, states, timestep, obs


def to_gymnasium_value(space: Space, value: Any) -> Any:
    """Convert a value of a space, or a batch of values, to Gymnasium's dtypes."""
    parts = zip(spaces.leaf_spaces(space), spaces.flatten(space, value), strict=True)
    given = [(leaf, np.asarray(part).astype(_gymnasium_dtype(leaf))) for leaf, part in parts]
    return spaces.unflatten(space, (x[()] if isinstance(leaf, Discrete) else x for leaf, x in given))


def _gymnasium_dtype(space: Simple) -> str:
    """Return the dtype that Gymnasium uses for values of a simple space."""
    if isinstance(space, Discrete | MultiDiscrete):
        return "int64"
    return {"bfloat16": "float32", "bool": "int8"}.get(space.dtype, space.dtype)


def from_gymnasium_action(space: Space, action: Any, *batch: int) -> Any:
    """Convert a Gymnasium action, or a batch of actions, to evorl's dtypes; raise OptionError if its shape is wrong."""
    given = []
    for leaf, part in zip(spaces.leaf_spaces(space), spaces.flatten(space, action), strict=True):
        x = np.asarray(part)
        require(x.shape == (*batch, *leaf.shape), "action", list(x.shape), f"must be {[*batch, *leaf.shape]}")
        given.append(x.astype(leaf.dtype))
    return spaces.unflatten(space, given)
