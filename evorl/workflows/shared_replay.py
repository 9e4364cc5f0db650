"""Population of off-policy members with one shared replay buffer."""

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
    """Population of off-policy members that learn from the transitions of all, in one replay buffer.

    All leaves of the state, except for the replay buffer, and all metrics have a leading axis [size]. The
    members share the random_steps of the first iteration. They train with separate random keys and are
    evaluated on the same episodes.

    Args:
        inner: Workflow of one member; its `capacity` is that of the shared replay buffer.
        size: Number of members.
    """

    inner: OffPolicy
    size: int

    def __post_init__(self) -> None:
        require_int("size", self.size)
        base.require_env_steps(self.inner, "inner")

    @property
    def _member_workflow(self) -> OffPolicy:
        """Return the workflow of one member, with its part of the random steps and the shared replay buffer."""
        replay = SharedReplayFactory(self.inner.replay, self.size)
        return replace(self.inner, random_steps=-(-self.inner.random_steps // self.size), replay=replay)

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of environments of a member, which can be distributed."""
        return self.inner.parallel_axes

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum cost of an iteration of all members, by name.

        The first iteration takes random_steps instead.
        """
        return base.total_iteration_cost(self.inner, self.size)

    @property
    def initial_env_steps(self) -> int:
        """Return the number of env steps of the first iteration of all members."""
        return self.size * self._member_workflow.initial_env_steps

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> OffPolicyState:
        """Return the initial state; numbers have a leading axis [size] (see tree.broadcast), env_params are shared."""
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
        """Let each member i inherit from member source[i], in place (see members.copy_members)."""
        return members.copy_members(self._member_workflow.inherit, state, source)

    def has_no_nan(self, state: OffPolicyState) -> Bool[Array, " size"]:
        """Return which members have a state without NaN, bool [size]."""
        return members.has_no_nan(state)

    def get_member(self, state: OffPolicyState, i: int | Array) -> tuple[Workflow, State]:
        """Return the inner workflow and the state of the i-th member, with the shared replay buffer."""
        light, replay = split_replays(state)
        return self.inner, join_replays(tree.index(light, i), replay)


@dataclass(frozen=True)
class SharedReplayFactory:
    """Factory of a replay buffer for the environments of all copies."""

    inner: ReplayFactory
    copies: int

    @property
    def has_sequences(self) -> bool:
        return self.inner.has_sequences

    def empty(self, capacity: int, row: Any, num_envs: int = 1) -> ReplayBuffer:
        return self.inner.empty(capacity, row, self.copies * num_envs)


@struct.dataclass
class SharedReplayView:
    """View of a replay buffer for vmapped copies: under the innermost vmap, all copies add to it and sample from it."""

    replay: ReplayBuffer
    copies: int = struct.field(pytree_node=False)

    @property
    def size(self) -> Int[Array, ""]:
        """Return the number of rows in the replay buffer."""
        return self.replay.size

    def add(self, rows: Transition, mask: Array) -> "SharedReplayView":
        """Add the masked rows of every copy, leaves [steps, envs, ...]."""
        return replace(self, replay=_batch_over_copies(_add, self.copies, 1)(self.replay, rows, mask))

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """Sample rows that any of the copies has added, leaves [*shape, ...]."""
        return self.replay.sample(key, shape)


@struct.dataclass
class SharedPrioritizedReplayView(SharedReplayView):
    """View of a prioritized replay buffer; if several copies update the priority of one row, one of them counts."""

    def update_priorities(self, index: Array, priority: Array) -> "SharedPrioritizedReplayView":
        """Set the priorities that every copy gives to rows."""
        return replace(self, replay=_batch_over_copies(_update, self.copies, 0)(self.replay, index, priority))


def _batch_over_copies(change: Callable[..., ReplayBuffer], copies: int, at: int) -> Callable[..., ReplayBuffer]:
    """Return a function that calls change(replay, *rows) once under vmap, with all copies' rows along axis `at`."""

    def apply_merged(replay: ReplayBuffer, rows: Any) -> ReplayBuffer:
        return change(replay, *jax.tree.map(lambda x: _merge_copies(x, at), rows))

    @jax.custom_batching.custom_vmap
    def apply_once(
        replay: ReplayBuffer, *rows: Any
    ) -> ReplayBuffer:  # without vmap: called only for the shapes of the result
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
