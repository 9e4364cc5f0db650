"""A population of off-policy members around one replay."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.errors import require_int
from evorl.replay.state_replays import join_replays, split_replays
from evorl.types import (
    Key,
    Metrics,
    Numbers,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayFactory,
    Sample,
    State,
    Transition,
    Workflow,
)
from evorl.workflows import base, members
from evorl.workflows.off_policy import OffPolicy, OffPolicyState

STATE_AXES = tree.fill_fields(OffPolicyState, 0, replay=None)


@dataclass(frozen=True)
class SharedReplay:
    """size off-policy members who learn from what all of them have done, which one replay of inner.capacity holds.

    Every leaf of the state but the replay, and of the metrics, leads with [size]. The members share the random_steps
    of the first iteration; they train with keys of their own and are evaluated on the same episodes.
    """

    inner: OffPolicy
    size: int

    def __post_init__(self) -> None:
        require_int("size", self.size)

    @property
    def _member_workflow(self) -> OffPolicy:
        """What a member does."""
        replay = SharedReplayFactory(self.inner.replay, self.size)
        return replace(self.inner, random_steps=-(-self.inner.random_steps // self.size), replay=replay)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration of all members takes; the first one takes random_steps instead."""
        return base.total_iteration_cost(self.inner, self.size)

    @property
    def initial_env_steps(self) -> int:
        """The env steps of the first iteration of all members."""
        return self.size * self._member_workflow.initial_env_steps

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> OffPolicyState:
        """Leaves of numbers lead with [size] (see tree.broadcast); env_params are shared."""
        init = jax.vmap(self._member_workflow.init, (0, 0, None), STATE_AXES)
        return init(jax.random.split(key, self.size), numbers, env_params)

    def step(self, state: OffPolicyState, key: Key) -> tuple[OffPolicyState, Metrics]:
        return self.step_or_evaluate(state, key, False)[:2]

    def evaluate(self, state: OffPolicyState, key: Key) -> Metrics:
        return self.step_or_evaluate(state, key, True)[2]

    def step_or_evaluate(
        self, state: OffPolicyState, key: Key, evaluating: bool | Array
    ) -> tuple[OffPolicyState, Metrics, Metrics]:
        def step_or_evaluate_member(state: OffPolicyState, key: Key) -> tuple[OffPolicyState, Metrics, Metrics]:
            several = (
                SharedPrioritizedReplayView if isinstance(state.replay, PrioritizedReplayBuffer) else SharedReplayView
            )
            state = replace(state, replay=several(state.replay, self.size))
            state, metrics, evaluation = base.step_or_evaluate(self._member_workflow, state, key, evaluating)
            view: Any = state.replay
            return replace(state, replay=view.replay), metrics, evaluation

        return jax.vmap(step_or_evaluate_member, (STATE_AXES, 0), (STATE_AXES, 0, 0))(
            state, members.member_keys(key, self.size, evaluating)
        )

    def inherit(self, state: OffPolicyState, parent: OffPolicyState) -> OffPolicyState:
        return jax.vmap(self._member_workflow.inherit, (STATE_AXES, STATE_AXES), STATE_AXES)(state, parent)

    def copy_members(self, state: OffPolicyState, source: Int[Array, " size"]) -> OffPolicyState:
        """Each member inherits from member source [size], in place. See members.copy_members."""
        return members.copy_members(self._member_workflow.inherit, state, source)

    def has_no_nan(self, state: OffPolicyState) -> Bool[Array, " size"]:
        """Which members hold no NaN."""
        return members.has_no_nan(state)

    def get_member(self, state: OffPolicyState, i: int) -> tuple[Workflow, State]:
        """The inner workflow and the state of its i-th member, with the replay of all."""
        light, replay = split_replays(state)
        return self.inner, join_replays(tree.index(light, i), replay)


@dataclass(frozen=True)
class SharedReplayFactory:
    """The replay of the environments of all copies."""

    inner: ReplayFactory
    copies: int

    @property
    def has_sequences(self) -> bool:
        return self.inner.has_sequences

    def empty(self, capacity: int, row: Any, num_envs: int = 1) -> ReplayBuffer:
        return self.inner.empty(capacity, row, self.copies * num_envs)


@struct.dataclass
class SharedReplayView:
    """A replay to which, under the innermost vmap, all copies add; each samples from what all have added."""

    replay: ReplayBuffer
    copies: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Int[Array, ""]:
        """Rows that it holds."""
        return self.replay.size

    def add(self, rows: Transition, mask: Array) -> "SharedReplayView":
        """Appends the rows, leaves [steps, envs, ...], of every copy where mask."""
        return replace(self, replay=_batch_over_copies(_add, self.copies, 1)(self.replay, rows, mask))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """Of what all have added, leaves [*shape, ...]."""
        return self.replay.sample(key, shape)


@struct.dataclass
class SharedPrioritizedReplayView(SharedReplayView):
    """One with priorities, which all copies update: where several of them do of one row, one of them counts."""

    def update_priorities(self, index: Array, priority: Array) -> "SharedPrioritizedReplayView":
        """The replay with the priorities that every copy gives to rows."""
        return replace(self, replay=_batch_over_copies(_update, self.copies, 0)(self.replay, index, priority))


def _batch_over_copies(change: Callable[..., ReplayBuffer], copies: int, at: int) -> Callable[..., ReplayBuffer]:
    """change(replay, *rows), once for all copies under a vmap, with the rows of all side by side on axis `at`."""

    def apply_merged(replay: ReplayBuffer, rows: Any) -> ReplayBuffer:
        return change(replay, *jax.tree.map(lambda x: _merge_copies(x, at), rows))

    @jax.custom_batching.custom_vmap
    def apply_once(
        replay: ReplayBuffer, *rows: Any
    ) -> ReplayBuffer:  # of one copy alone, which is only looked at for its shapes
        return apply_merged(replay, tree.broadcast(list(rows), copies))

    @apply_once.def_vmap
    def _(axis_size: int, in_batched: list[Any], replay: ReplayBuffer, *rows: Any) -> tuple[Any, Any]:
        shared, *own = in_batched
        spread = lambda x, batched: x if batched else tree.broadcast(x, axis_size)  # noqa: E731
        return apply_merged(replay, jax.tree.map(spread, list(rows), own)), shared

    return apply_once


def _merge_copies(x: Array, at: int) -> Array:
    x = jnp.moveaxis(x, 0, at)
    return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])


def _add(replay: ReplayBuffer, rows: Transition, mask: Array) -> ReplayBuffer:
    return replay.add(rows, mask)


def _update(replay: PrioritizedReplayBuffer, index: Array, priority: Array) -> ReplayBuffer:
    return replay.update_priorities(index, priority)
