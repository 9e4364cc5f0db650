"""Host environments that are stepped sequentially, with their inputs and outputs in shared buffers.

Buffers are arrays with one row per environment (its place). Workers import this file, so it must not import
JAX or other modules of evorl.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONSTRUCTOR, RESET, STEP = "constructor", "reset", "step"
DONE, FAILED, STEPPED = 1, 2, 3  # status of a place; STEPPED: the step is done, the next episode not started
MASK = "action_mask"  # key of the action mask in Gymnasium and PettingZoo
CAST, UNUSED_MASK = 1, 2  # notes of a place: observations were cast; infos hold an unused action mask


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action."""

    path: tuple[Any, ...]  # keys that lead to it in a value
    shape: tuple[int, ...]
    dtype: str  # in the buffer
    native: str  # in the environment

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Leaf":
        """Create a leaf from its fields as parsed from JSON."""
        return cls(tuple(data["path"]), tuple(data["shape"]), data["dtype"], data["native"])

    @property
    def nbytes(self) -> int:
        """Return the size of one value in the buffer, in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """The arrays of observations, actions and rewards, in the order of the leaves of evorl's spaces."""

    obs: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    nested: dict[str, Any] | list[Any] | None  # containers of an action; a list stands for a tuple, None for a leaf
    rewards: tuple[int, ...] = ()  # shape of a reward: agents of a game, or objectives
    is_game: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Layout":
        """Create a layout from the fields that `dataclasses.asdict` gives, as parsed from JSON."""
        obs, action = (tuple(Leaf.from_dict(leaf) for leaf in data[name]) for name in ("obs", "action"))
        return cls(obs, action, data["nested"], tuple(data["rewards"]), data["is_game"])

    @property
    def fields(self) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        """Return the name, shape (without places) and dtype of each buffer."""
        kinds = {"obs": self.obs, "action": self.action}
        found = [(f"{name}{i}", x.shape, x.dtype) for name, leaves in kinds.items() for i, x in enumerate(leaves)]
        found += [(f"first{i}", x.shape, x.dtype) for i, x in enumerate(self.obs)]
        found += [("reward", self.rewards, "float32"), ("terminated", (), "bool"), ("truncated", (), "bool")]
        found += [("left", self.rewards, "uint8")] if self.is_game else []
        found += [("begun", (), "bool"), ("status", (), "uint8"), ("notes", (), "uint8")]
        return [(name, shape, np.dtype(dtype)) for name, shape, dtype in found]

    def nbytes(self, places: int) -> int:
        """Return the size of the buffers for this many places, in bytes."""
        return sum(_align(places * int(np.prod(shape)) * dtype.itemsize) for _, shape, dtype in self.fields)

    def create_buffers(self, places: int, file: int) -> dict[str, np.ndarray]:
        """Map a file into memory and return its buffers by name, shape [places, ...].

        Only the pages that are used take memory.
        """
        memory, board, at = mmap.mmap(file, self.nbytes(places)), {}, 0
        for name, shape, dtype in self.fields:
            size = places * int(np.prod(shape))
            board[name] = np.frombuffer(memory, dtype, size, at).reshape(places, *shape)
            at += _align(size * dtype.itemsize)
        return board


def create_shared_memory(nbytes: int) -> int:
    """Create an unnamed file and return its descriptor.

    The file disappears with the last process that has it open.
    """
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("evorl")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.truncate(file, nbytes)
    return file


class SerialEnvs:
    """Environments by place, created when first needed, which read from and write to buffers."""

    def __init__(self, make: Callable[[], Any], layout: Layout, board: dict[str, np.ndarray]) -> None:
        self.make, self.layout = make, layout
        self.envs: dict[int, Any] = {}
        self.obs, self.first = (
            [
                (array := board[f"{name}{i}"], leaf, native := np.dtype(leaf.native), _is_narrower(array.dtype, native))
                for i, leaf in enumerate(layout.obs)
            ]
            for name in ("obs", "first")
        )
        self.action = [(board[f"action{i}"], leaf) for i, leaf in enumerate(layout.action)]
        self.outcome = board["reward"], board["terminated"], board["truncated"]
        self.left = board.get("left")  # only in games: the state of each agent
        self.begun, self.status, self.notes = board["begun"], board["status"], board["notes"]

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        """Start an episode in each place; return the error messages of those that failed, by place."""
        failed = {}
        for place, seed in zip(places, seeds, strict=True):
            stage = CONSTRUCTOR
            try:
                if place not in self.envs:
                    self.envs[place] = self.make()
                stage = RESET
                obs, info = self.envs[place].reset(seed=seed)
                self._write_obs(place, obs)
                if MASK in info:
                    self.notes[place] |= UNUSED_MASK
                self.status[place] = DONE
            except BaseException as error:  # also sys.exit(): an exception here would end the program
                failed[place] = self._close_failed(place, stage, error)
        return failed

    def step(self, places: Sequence[int], seeds: Sequence[int] = ()) -> dict[int, str]:
        """Take a step in each place with the actions in the buffers; return the error messages by place.

        At the end of an episode, the observation buffer holds its true final observation. With seeds, the
        next episode then starts at once.
        """
        failed, envs, put = {}, self.envs, self._write_obs
        (_, terminations, truncations), status = self.outcome, self.status
        self.begun[list(places)] = False
        for place, action, seed in zip(places, self._read_actions(places), seeds or [None] * len(places), strict=True):
            stage = STEP
            try:
                obs, reward, terminated, truncated, info = envs[place].step(action)
                put(place, obs)
                self._write_reward(place, reward)
                terminations[place] = terminated
                truncations[place] = truncated and not terminated
                if self.left is not None:
                    self.left[place] = info["left"]
                if seed is not None and (terminated or truncated):
                    stage, status[place] = RESET, STEPPED
                    put(place, envs[place].reset(seed=seed)[0], self.first)
                    self.begun[place] = True
                status[place] = DONE
            except BaseException as error:
                failed[place] = self._close_failed(place, stage, error)
        return failed

    def _read_actions(self, places: Sequence[int]) -> list[Any]:
        """Return the actions in the buffers, in the structure and dtypes of the environments."""
        leaf = self.layout.action[0]
        if self.layout.nested is None and not leaf.shape and leaf.native == "int64":
            return self.action[0][0][places].tolist()
        return [self._rebuild_structure(self.layout.nested, iter(self._read_action_parts(place))) for place in places]

    def close(self, places: Sequence[int]) -> None:
        """Close the environments of these places; ignore their exceptions."""
        for place in places:
            env = self.envs.pop(place, None)
            try:
                if env is not None:
                    env.close()
            except (Exception, SystemExit):
                pass

    def _read_action_parts(self, place: int) -> list[Any]:
        return [array[place].astype(leaf.native) for array, leaf in self.action]  # may be kept by the environment

    def _rebuild_structure(self, kind: Any, parts: Any) -> Any:
        if isinstance(kind, dict):
            return {name: self._rebuild_structure(kind[name], parts) for name in kind}
        if isinstance(kind, list):
            return tuple(self._rebuild_structure(one, parts) for one in kind)
        return next(parts)

    def _write_reward(self, place: int, reward: Any) -> None:
        """Write a reward, also one given as an array of one number; raise ValueError if its shape is wrong."""
        shape = self.layout.rewards
        if shape or isinstance(reward, np.ndarray | list | tuple):
            reward = np.asarray(reward)
            reward = reward.reshape(()) if reward.size == 1 and not shape else reward
            if reward.shape != shape:
                wanted = f"the reward has shape {list(reward.shape)}, not {list(shape)}"
                raise ValueError(f"{wanted}; declare several objectives in the environment's reward_space")
        self.outcome[0][place] = reward

    def _write_obs(self, place: int, obs: Any, boards: Any = None) -> None:
        """Write an observation; cast it if only precision is lost.

        Raises:
            ValueError: If the shape or the dtype does not fit the observation space, or an integer of 64 bits
                does not fit into 32.
        """
        for array, leaf, native, is_narrower in boards or self.obs:
            part = obs
            for name in leaf.path:
                part = part[name]
            part = np.asarray(part)
            if part.shape != leaf.shape:
                raise ValueError(f"the observation has shape {list(part.shape)}, not {list(leaf.shape)}")
            if part.dtype != native:
                if not np.can_cast(part.dtype, native, "same_kind"):
                    raise ValueError(f"the observation has dtype {part.dtype}, not {native}")
                self.notes[place] |= CAST
            array[place] = part
            if is_narrower and (array[place] != part).any():
                raise ValueError(f"the observation has an integer that does not fit into {array.dtype}")

    def _close_failed(self, place: int, stage: str, error: BaseException) -> str:
        """Close a failed environment, which is not used again, and return the error message, one line."""
        self.close([place])
        self.status[place] = STEPPED if self.status[place] == STEPPED else FAILED
        return f"{stage}: " + f"{type(error).__name__}: {error}".strip().partition("\n")[0][:300]


def _is_narrower(dtype: Any, native: Any) -> bool:
    return dtype.kind in "iu" and dtype.itemsize < native.itemsize


class MaskedEnv:
    """Gymnasium environment whose infos hold action masks, with the mask as part of the observations.

    Args:
        env: Environment whose reset and step return infos with an "action_mask": an array, or a tuple with
            one array per action dimension. If the mask is missing, all actions are valid.
        num_actions: Length of the mask.
    """

    def __init__(self, env: Any, num_actions: int) -> None:
        self.env, self.num_actions = env, num_actions

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed)
        return self._with_mask(obs, info), {}

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, {}

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(MASK)
        parts = [np.ones(self.num_actions)] if mask is None else mask if isinstance(mask, tuple | list) else [mask]
        legal = np.concatenate([np.ravel(part) for part in parts]).astype(bool)
        if legal.shape != (self.num_actions,):
            raise ValueError(f"the {MASK} has {legal.size} numbers, not {self.num_actions}")
        return {"legal": legal, "obs": obs}


def _align(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
