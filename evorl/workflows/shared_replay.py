"""A population of off-policy members around one replay."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import hyperparameters, tree
from evorl.errors import require_whole
from evorl.hyperparameters import as_state
from evorl.replay import join, split
from evorl.types import (
    Hyperparams,
    Key,
    Metrics,
    Prioritizes,
    Replay,
    Replays,
    Sample,
    State,
    Transition,
    Workflow,
)
from evorl.workflows import base, members
from evorl.workflows.off_policy import OffPolicy, OffPolicyState

AXES = OffPolicyState(hyperparams=0, env_params=0, agent=0, slots=0, replay=None, window=0, iteration=0)


@dataclass(frozen=True)
class SharedReplay:
    """size off-policy members who learn from what all of them have done, which one replay of inner.capacity holds.

    Every leaf of the state but the replay, and of the metrics, leads with [size]. The members share the random_steps
    of the first iteration; they train with keys of their own and are evaluated on the same episodes.
    """

    inner: OffPolicy
    size: int

    def __post_init__(self) -> None:
        require_whole("size", self.size)

    @property
    def _one(self) -> OffPolicy:
        """What a member does."""
        replay = OfAll(self.inner.replay, self.size)
        return replace(self.inner, random_steps=-(-self.inner.random_steps // self.size), replay=replay)

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration of all members takes; the first one takes random_steps instead."""
        return base.work(self.inner, self.size)

    @property
    def first_steps(self) -> int:
        """The env steps of the first iteration of all members."""
        return self.size * self._one.first_steps

    def init(self, key: Key, hyperparams: Hyperparams, env_params: Any = None) -> OffPolicyState:
        """Leaves of hyperparams lead with [size] (see tree.broadcast); env_params are shared."""
        init = jax.vmap(self._one.init, (0, 0, None), AXES)
        return init(jax.random.split(key, self.size), hyperparams, env_params)

    def step(self, state: OffPolicyState, key: Key) -> tuple[OffPolicyState, Metrics]:
        return self.advance(state, key, False)[:2]

    def evaluate(self, state: OffPolicyState, key: Key) -> Metrics:
        return self.advance(state, key, True)[2]

    def advance(
        self, state: OffPolicyState, key: Key, evaluating: bool | Array
    ) -> tuple[OffPolicyState, Metrics, Metrics]:
        def one(state: OffPolicyState, key: Key) -> tuple[OffPolicyState, Metrics, Metrics]:
            several = SharedPriorities if isinstance(state.replay, Prioritizes) else Shared
            state = replace(state, replay=several(state.replay, self.size))
            state, metrics, evaluation = base.advance(self._one, state, key, evaluating)
            return replace(state, replay=state.replay.replay), metrics, evaluation

        return jax.vmap(one, (AXES, 0), (AXES, 0, 0))(state, members.keys(key, self.size, evaluating))

    def hyperparams(self, state: OffPolicyState | None = None) -> Hyperparams:
        if state is None:
            return tree.broadcast(as_state(hyperparameters.of(self.inner)), self.size)
        return state.hyperparams

    def with_hyperparams(self, state: OffPolicyState, hyperparams: Hyperparams) -> OffPolicyState:
        return replace(state, hyperparams=hyperparams)

    def inherit(self, state: OffPolicyState, parent: OffPolicyState) -> OffPolicyState:
        return jax.vmap(self._one.inherit, (AXES, AXES), AXES)(state, parent)

    def copy_members(self, state: OffPolicyState, source: Int[Array, " size"]) -> OffPolicyState:
        """Each member inherits from member source [size], in place. See members.copy."""
        return members.copy(self._one.inherit, state, source)

    def has_no_nan(self, state: OffPolicyState) -> Bool[Array, " size"]:
        """Which members hold no NaN."""
        return members.has_no_nan(state)

    def member(self, state: OffPolicyState, i: int) -> tuple[Workflow, State]:
        """The inner workflow and the state of its i-th member, with the replay of all."""
        light, replay = split(state)
        return self.inner, join(tree.index(light, i), replay)


@dataclass(frozen=True)
class OfAll:
    """The replay of the slots of all copies."""

    inner: Replays
    copies: int

    @property
    def sequences(self) -> bool:
        return self.inner.sequences

    def empty(self, capacity: int, row: Any, num_slots: int = 1) -> Replay:
        return self.inner.empty(capacity, row, self.copies * num_slots)


@struct.dataclass
class Shared:
    """A replay to which, under the innermost vmap, all copies add; each samples from what all have added."""

    replay: Replay
    copies: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Int[Array, ""]:
        """Rows that it holds."""
        return self.replay.size

    def add(self, rows: Transition, mask: Array) -> "Shared":
        """Appends the rows, leaves [steps, slots, ...], of every copy where mask."""
        return replace(self, replay=_by_all(_add, self.copies, 1)(self.replay, rows, mask))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """Of what all have added, leaves [*shape, ...]."""
        return self.replay.sample(key, shape)


@struct.dataclass
class SharedPriorities(Shared):
    """One with priorities, which all copies update: where several of them do of one row, one of them counts."""

    def update(self, index: Array, priority: Array) -> "SharedPriorities":
        """The replay with the priorities that every copy gives to rows."""
        return replace(self, replay=_by_all(_update, self.copies, 0)(self.replay, index, priority))


def _by_all(change: Callable[..., Replay], copies: int, at: int) -> Callable[..., Replay]:
    """change(replay, *rows), once for all copies under a vmap, with the rows of all side by side on axis `at`."""

    def together(replay: Replay, rows: Any) -> Replay:
        return change(replay, *jax.tree.map(lambda x: _side_by_side(x, at), rows))

    @jax.custom_batching.custom_vmap
    def once(replay: Replay, *rows: Any) -> Replay:  # of one copy alone, which is only looked at for its shapes
        return together(replay, tree.broadcast(list(rows), copies))

    @once.def_vmap
    def _(axis_size: int, in_batched: list[Any], replay: Replay, *rows: Any) -> tuple[Any, Any]:
        shared, *own = in_batched
        spread = lambda x, batched: x if batched else tree.broadcast(x, axis_size)  # noqa: E731
        return together(replay, jax.tree.map(spread, list(rows), own)), shared

    return once


def _side_by_side(x: Array, at: int) -> Array:
    x = jnp.moveaxis(x, 0, at)
    return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])


def _add(replay: Replay, rows: Transition, mask: Array) -> Replay:
    return replay.add(rows, mask)


def _update(replay: Prioritizes, index: Array, priority: Array) -> Replay:
    return replay.update(index, priority)
