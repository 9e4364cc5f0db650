"""Gymnasium environments by place, played one after the other. A worker imports this: no JAX, nothing of evorl.

What they say lies on a board, arrays whose rows are places; of what goes wrong there is one line.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONSTRUCTOR, RESET, STEP = "constructor", "reset", "step"
DONE, FAILED, STEPPED = 1, 2, 3  # the status of a place; the last: it has not begun the episode that was to follow
MASK = "action_mask"  # what Gymnasium and PettingZoo call which actions are legal
CAST, UNUSED_MASK = 1, 2  # notes of a place: its observations were cast; its infos hold a mask that is not asked for


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action."""

    path: tuple[Any, ...]  # where it is in a value
    shape: tuple[int, ...]
    dtype: str  # as it lies on the board
    native: str  # as the environment has it

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Leaf":
        """That of which data are."""
        return cls(tuple(data["path"]), tuple(data["shape"]), data["dtype"], data["native"])

    @property
    def nbytes(self) -> int:
        """Bytes of one on the board."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """What observations and actions are made of, leaf by leaf in the order of evorl's spaces."""

    obs: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    nested: dict[str, Any] | list[Any] | None  # the containers of an action; a list is a tuple there, None a leaf
    rewards: tuple[int, ...] = ()  # the shape of a reward: of the agents of a game, or of objectives
    is_game: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Layout":
        """That of which data are, as dataclasses.asdict gives them, in JSON."""
        obs, action = (tuple(Leaf.from_dict(leaf) for leaf in data[name]) for name in ("obs", "action"))
        return cls(obs, action, data["nested"], tuple(data["rewards"]), data["is_game"])

    @property
    def fields(self) -> list[tuple[str, tuple[int, ...], np.dtype]]:
        """Name, shape and dtype of every array of a board."""
        kinds = {"obs": self.obs, "action": self.action}
        found = [(f"{name}{i}", x.shape, x.dtype) for name, leaves in kinds.items() for i, x in enumerate(leaves)]
        found += [(f"first{i}", x.shape, x.dtype) for i, x in enumerate(self.obs)]
        found += [("reward", self.rewards, "float32"), ("terminated", (), "bool"), ("truncated", (), "bool")]
        found += [("left", self.rewards, "uint8")] if self.is_game else []
        found += [("begun", (), "bool"), ("status", (), "uint8"), ("notes", (), "uint8")]
        return [(name, shape, np.dtype(dtype)) for name, shape, dtype in found]

    def nbytes(self, places: int) -> int:
        """Bytes of a board."""
        return sum(_align(places * int(np.prod(shape)) * dtype.itemsize) for _, shape, dtype in self.fields)

    def create_buffers(self, places: int, file: int) -> dict[str, np.ndarray]:
        """Arrays [places, ...] by name, which lie in a file; of its pages those are there that were touched."""
        memory, board, at = mmap.mmap(file, self.nbytes(places)), {}, 0
        for name, shape, dtype in self.fields:
            size = places * int(np.prod(shape))
            board[name] = np.frombuffer(memory, dtype, size, at).reshape(places, *shape)
            at += _align(size * dtype.itemsize)
        return board


def create_shared_memory(nbytes: int) -> int:
    """A file without a name, which is gone with the last process that has it open; its descriptor."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("evorl")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.truncate(file, nbytes)
    return file


class SerialEnvs:
    """Environments by place, made where they are first needed, and what they say on a board."""

    def __init__(self, make: Callable[[], Any], layout: Layout, board: dict[str, np.ndarray]) -> None:
        self.make, self.layout = make, layout
        self.envs: dict[int, Any] = {}
        self.obs, self.first = (
            [(board[f"{name}{i}"], leaf, np.dtype(leaf.native)) for i, leaf in enumerate(layout.obs)]
            for name in ("obs", "first")
        )
        self.action = [(board[f"action{i}"], leaf) for i, leaf in enumerate(layout.action)]
        self.outcome = board["reward"], board["terminated"], board["truncated"]
        self.left = board.get("left")  # of a game, what has become of each agent
        self.begun, self.status, self.notes = board["begun"], board["status"], board["notes"]

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        """Begins episodes; returns what went wrong, by place."""
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
            except BaseException as error:  # sys.exit() too: what is raised here would end the program
                failed[place] = self._close_failed(place, stage, error)
        return failed

    def step(self, places: Sequence[int], seeds: Sequence[int] = ()) -> dict[int, str]:
        """Takes the steps whose actions are on the board, where the true final observation is at an episode's end.

        With seeds the next episode begins then.
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
        """Those on the board, as the environments take them."""
        leaf = self.layout.action[0]
        if self.layout.nested is None and not leaf.shape and leaf.native == "int64":
            return self.action[0][0][places].tolist()
        return [self._rebuild_structure(self.layout.nested, iter(self._read_action_parts(place))) for place in places]

    def close(self, places: Sequence[int]) -> None:
        """Closes the environments of these places."""
        for place in places:
            env = self.envs.pop(place, None)
            try:
                if env is not None:
                    env.close()
            except Exception:
                pass

    def _read_action_parts(self, place: int) -> list[Any]:
        return [array[place].astype(leaf.native) for array, leaf in self.action]  # which the environment may keep

    def _rebuild_structure(self, kind: Any, parts: Any) -> Any:
        if isinstance(kind, dict):
            return {name: self._rebuild_structure(kind[name], parts) for name in kind}
        if isinstance(kind, list):
            return tuple(self._rebuild_structure(one, parts) for one in kind)
        return next(parts)

    def _write_reward(self, place: int, reward: Any) -> None:
        """Write a reward, an array of one number too; raise ValueError where it has another shape."""
        shape = self.layout.rewards
        if shape or isinstance(reward, np.ndarray | list | tuple):
            reward = np.asarray(reward)
            reward = reward.reshape(()) if reward.size == 1 and not shape else reward
            if reward.shape != shape:
                wanted = f"the reward has shape {list(reward.shape)}, not {list(shape)}"
                raise ValueError(f"{wanted}; several objectives are declared by the environment's reward_space")
        self.outcome[0][place] = reward

    def _write_obs(self, place: int, obs: Any, boards: Any = None) -> None:
        """Write an observation, cast where that loses digits alone; raise ValueError where its space is another."""
        for array, leaf, native in boards or self.obs:
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

    def _close_failed(self, place: int, stage: str, error: BaseException) -> str:
        """What went wrong in one line; the environment is not used again."""
        self.close([place])
        self.status[place] = STEPPED if self.status[place] == STEPPED else FAILED
        return f"{stage}: " + f"{type(error).__name__}: {error}".strip().partition("\n")[0][:300]


class MaskedEnv:
    """A Gymnasium environment whose infos say which actions are legal, as one whose observations do.

    Args:
        env: whose reset and step give infos with an "action_mask", an array, or a tuple of one for each choice. Where
            one is missing all actions are legal.
        num_actions: how many numbers a mask has.
    """

    def __init__(self, env: Any, num_actions: int) -> None:
        self.env, self.num_actions = env, num_actions

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
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
