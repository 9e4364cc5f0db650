"""Gymnasium's MuJoCo tasks on MuJoCo's C engine, as pure environments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Int, UInt32

from evorl import tree
from evorl.envs.host.host_callback import CHUNK_BYTES
from evorl.envs.mujoco.engine import Engine
from evorl.envs.mujoco.gymnasium_task import GymnasiumTask
from evorl.envs.suites.common import set_default_limit
from evorl.errors import require_int
from evorl.machine import count_cores
from evorl.types import Key, TimeStep


@struct.dataclass
class MuJoCoState:
    """The state of a MuJoCo environment.

    Args:
        bits: The bits, as uint32, of a float64 vector: all that MuJoCo integrates and, for tasks that track a
            body, its x position.
        steps: Number of steps in the episode.
    """

    bits: UInt32[Array, " words"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class MuJoCo(GymnasiumTask):
    """One of Gymnasium's v5 MuJoCo tasks by its id, such as MuJoCo("HalfCheetah-v5"), on MuJoCo's C engine.

    The environment is pure: its state holds the bits of MuJoCo's state, so that states can be copied and
    restored. All vmapped rows are stepped in one call of the host.

    Args:
        name: Id of the task in Gymnasium.
        options: Keyword arguments of Gymnasium's environment, such as {"ctrl_cost_weight": 0.2}.
        threads: Number of threads that step the rows, which does not change the results; 0 takes as many as
            there are cores.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the task's own limit.

    Raises:
        OptionError: If a value is not allowed, or the task or an option is unknown.

    Source: Todorov et al. 2012, MuJoCo.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    threads: int = 0
    max_episode_steps: int = 0

    engine_name = "MuJoCo"
    default_params = None
    fresh_reset = False

    def __post_init__(self) -> None:
        plain = {name: tuple(x) if isinstance(x, list) else x for name, x in self.options.items()}
        object.__setattr__(self, "options", FrozenDict(plain))
        require_int("threads", self.threads, 0)
        set_default_limit(self, lambda: self._engine.limit)

    @cached_property
    def _engine(self) -> Engine:
        engine = Engine(self.name, self.options, self.threads or count_cores())
        _ = engine.executor
        return engine

    @property
    def _sizes(self) -> tuple[int, int]:
        """Return the size of a state and the size of an observation."""
        return self._engine.numbers, self._engine.env.observation_space.shape[0]

    def reset(self, key: Key, params: Any) -> tuple[MuJoCoState, Any]:
        """Reset with Gymnasium's own reset, seeded with 64 random bits drawn from the key."""
        del params
        numbers, size = self._sizes
        found = batch_engine_calls(self._reset_on_host, 2 * numbers + size)(jax.random.bits(key, (2,), jnp.uint32))
        return MuJoCoState(found[: 2 * numbers], jnp.int32(0)), _to_floats(found[2 * numbers :])

    def step(self, key: Key, env_state: MuJoCoState, action: Any, params: Any) -> tuple[MuJoCoState, TimeStep]:
        del key, params
        numbers, size = self._sizes
        ends = np.cumsum([2 * numbers, size, 1])
        given = jnp.concatenate([env_state.bits, jax.lax.bitcast_convert_type(jnp.float32(action), jnp.uint32)])
        found = batch_engine_calls(self._step_on_host, int(ends[-1]) + 1)(given)
        bits, obs, reward, terminated = jnp.split(found, ends)
        state, terminated = MuJoCoState(bits, env_state.steps + 1), terminated[0] > 0
        truncated = ~terminated & (state.steps >= self.max_episode_steps)
        return state, TimeStep(_to_floats(obs), _to_floats(reward)[0], terminated, truncated)

    def _reset_on_host(self, words: np.ndarray) -> np.ndarray:
        high, low = words.astype(np.uint64).T
        states, obs = self._engine.reset(high << np.uint64(32) | low)
        return np.concatenate([states.view(np.uint32), obs.view(np.uint32)], 1)

    def _step_on_host(self, words: np.ndarray) -> np.ndarray:
        at = 2 * self._engine.numbers
        states, action = (np.ascontiguousarray(part) for part in (words[:, :at], words[:, at:]))
        after, obs, reward, terminated = self._engine.step(states.view(np.float64), action.view(np.float32))
        outcome = reward.astype(np.float32).view(np.uint32)[:, None], terminated.astype(np.uint32)[:, None]
        return np.concatenate([after.view(np.uint32), obs.view(np.uint32), *outcome], 1)

    @property
    def _gymnasium_env(self) -> Any:
        return self._engine.env

    def _get_positions(self, states: Sequence[MuJoCoState]) -> list[np.ndarray]:
        rows = [np.asarray(state.bits).view(np.float64) for state in states]
        return [row[1 : 1 + self._engine.env.model.nq] for row in rows]


def batch_engine_calls(host: Callable[[np.ndarray], np.ndarray], width: int) -> Callable[[Any], Any]:
    """Turn a host function of many rows of uint32 words into a pure JAX function of one row.

    All vmapped rows are one call of the host function, which maps words [n, given] to words [n, width].
    """

    def from_pieces(pieces: Sequence[Any]) -> np.ndarray:
        return host(np.concatenate([np.asarray(piece) for piece in pieces]))

    @jax.custom_batching.custom_vmap
    def call(rows: Any) -> Any:
        n, step = len(rows), max(CHUNK_BYTES // (4 * rows.shape[1]), 1)
        pieces = [rows[i : i + step] for i in range(0, n, step)]
        return jax.pure_callback(from_pieces, jax.ShapeDtypeStruct((n, width), jnp.uint32), pieces)

    @call.def_vmap
    def _(axis_size: int, in_batched: list[bool], rows: Any) -> tuple[Any, bool]:
        rows = rows if in_batched[0] else tree.broadcast(rows, axis_size)
        return call(rows.reshape(-1, rows.shape[-1])).reshape(axis_size, -1, width), True

    return lambda row: call(row[None])[0]


def _to_floats(words: Any) -> Any:
    return jax.lax.bitcast_convert_type(words, jnp.float32)
