"""What flows between the parts: names of types, steps, batches and what a replay gives."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, Float, Int, PyTree

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Params: TypeAlias = Any
Memory: TypeAlias = Any
Numbers: TypeAlias = Mapping[str, Any]  # of a part, nested by field name
State: TypeAlias = Any
Level: TypeAlias = Any
Metrics: TypeAlias = dict[str, jax.Array]
# how the agent acts in one environment: (obs, memory, key) -> (action, memory, extras)
PolicyFn: TypeAlias = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]


@struct.dataclass
class MemberEnds:
    """The members of a game that are out of it for good, bool [n] by group; they stay so until the next reset.

    A member is in at most one of the two. It acts and earns no more, unlike one that only waits for its turn.
    """

    terminated: PyTree  # the task of the member ended; do not bootstrap
    truncated: PyTree  # its time ran out; bootstrap from what it saw last

    @staticmethod
    def merge_game_end(game: tuple[Any, Any], own: tuple[Any, Any], gone: Any = None) -> tuple[Any, Any]:
        """Return whether a member terminated and whether it was truncated.

        Args:
            game: whether its game terminated and whether it was truncated.
            own: whether it did alone, and whether it was.
            gone: whether it had ended before the step, which then counts as terminated, so that nothing is valued.
        """
        own = own if gone is None else (own[0] | gone, own[1] & ~gone)
        terminated = own[0] | (game[0] & ~own[1])
        return terminated, ~terminated & (game[1] | own[1])

    @property
    def is_done(self) -> dict[str, Array]:
        """Whether each member is out, either way, bool [n] by group."""
        return jax.tree.map(jnp.logical_or, self.terminated, self.truncated)


@struct.dataclass
class TimeStep:
    """What an environment answers to one action."""

    obs: PyTree
    reward: PyTree  # []; several numbers, of agents or objectives, where the workflow takes them
    terminated: Bool[Array, ""]  # the task ended; do not bootstrap
    truncated: Bool[Array, ""]  # time ran out; bootstrap
    info: dict[str, Array] = struct.field(default_factory=dict)
    member_ends: MemberEnds | None = None  # of a game whose members may end before it does
    task_reward: PyTree = None  # the task's own, where a wrapper has changed `reward` for learning

    @property
    def raw_reward(self) -> Any:
        """The task's own reward, of which returns are the sums."""
        return self.reward if self.task_reward is None else self.task_reward

    def with_shaped_reward(self, reward: Any) -> "TimeStep":
        """Return the same with another reward to learn from; the task's own stays."""
        return replace(self, reward=reward, task_reward=self.raw_reward)

    def with_rewards(self, change: Callable[[Any], Any]) -> "TimeStep":
        """Return the same with what `change` makes of the reward and, where there is one, of the task's own."""
        task = None if self.task_reward is None else change(self.task_reward)
        return replace(self, reward=change(self.reward), task_reward=task)


@struct.dataclass
class Transition:
    """One step as it is learned from."""

    obs: PyTree
    action: PyTree
    reward: PyTree
    next_obs: PyTree  # the true successor, never the observation after a reset
    terminated: Bool[Array, "*batch"]  # do not bootstrap
    truncated: Bool[Array, "*batch"]  # bootstrap, but cut traces and reset memory
    extras: dict[str, PyTree] = struct.field(default_factory=dict)
    discount: Float[Array, "*batch"] | None = None  # of a value at next_obs, where rows are over several steps
    memory: Memory = None  # of the policy before the step; None where it has none
    weight: PyTree = None  # float, [*batch], of the row in the loss; None where all count alike
    member_ends: MemberEnds | None = None  # after the step, of a game whose members may end before it does
    members_done: PyTree = None  # bool, [n] by group: whether a member had ended before, so that it did not act
    burn_in: int = struct.field(pytree_node=False, default=0)  # first steps of a sequence, which only warm the memory
    n_step: int = struct.field(pytree_node=False, default=1)  # how many rewards of a sequence a target takes

    @property
    def is_done(self) -> Array:
        """Whether the episode ended, either way."""
        return self.terminated | self.truncated

    @property
    def is_trace_end(self) -> Array:
        """Whether the episode ended, or that of a member that was truncated alone, whose successor is valued."""
        if self.member_ends is None:
            return self.is_done
        new = jax.tree.map(lambda out, gone: (out & ~gone).any(-1), self.member_ends.truncated, self.members_done)
        return self.is_done | jnp.stack(jax.tree.leaves(new)).any(0)

    @property
    def training_steps(self) -> "Transition":
        """The steps that are learned from: of a sequence, leaves [steps, ...], those after the burn-in."""
        if not self.burn_in:
            return self
        steps = jax.tree.map(lambda x: x[self.burn_in :], replace(self, memory=None, weight=None, burn_in=0))
        return replace(steps, memory=self.memory, weight=self.weight)


@struct.dataclass
class Sample:
    """Rows that a replay has drawn, leaves [*shape, ...].

    Sequences have their steps before the last axis of the shape, but the memory before the first, leaves [*shape, ...].
    """

    rows: PyTree  # a Transition, or what else a replay holds
    index: Int[Array, "*shape"]  # where they lie
    weight: Float[Array, "*shape"] | None = None  # of each in the loss; None where all count alike


@struct.dataclass
class Batch:
    """What the losses of an on-policy agent take; leaves share their leading axes, the last of which are steps."""

    obs: PyTree
    raw_action: PyTree  # what the action came from
    log_prob: PyTree  # of the sample, by the policy that drew it
    value: PyTree  # before learning
    advantage: PyTree
    target: PyTree  # of the value
    done: PyTree = None  # bool, whether the next step begins an episode; None without memory
    memory: Memory = None  # before each step; where steps are cut into segments, before the first of each
    ensemble_values: PyTree = None  # of which value is the mean, on a last axis; None where there is one
    ratio: PyTree = None  # of the probability by the policy that learns, before it does, to log_prob's; None where 1
    bootstrap_value: PyTree = None  # the value of the successor where time ran out, and after the last step
    weight: PyTree = None  # 1 of rows that are learned from, else 0; None where all are
