"""Type aliases, and the data structures that components exchange: time steps, transitions, samples and batches."""

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
Numbers: TypeAlias = Mapping[str, Any]  # hyperparameters of a component, nested by field name
State: TypeAlias = Any
Level: TypeAlias = Any
Metrics: TypeAlias = dict[str, jax.Array]
# policy of one environment: (obs, recurrent state, key) -> (action, recurrent state, extras)
PolicyFn: TypeAlias = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]


@struct.dataclass
class MemberEnds:
    """Masks of the agents of a multi-agent environment that have left the episode for good, bool [n] by group.

    An agent of a group, called a member, stays in its mask until the next reset. It then neither acts nor
    earns rewards, unlike a member that only waits for its turn. It is in at most one of the two masks.
    """

    terminated: PyTree  # the member's own task ended; do not bootstrap
    truncated: PyTree  # the member's time limit was reached; bootstrap from its last observation

    @staticmethod
    def merge_game_end(game: tuple[Any, Any], own: tuple[Any, Any], gone: Any = None) -> tuple[Any, Any]:
        """Return whether a member terminated and whether it was truncated, on its own or with the episode.

        Args:
            game: Whether the episode terminated, and whether it was truncated.
            own: Whether the member alone terminated, and whether it alone was truncated.
            gone: Whether the member had ended before this step; None if no member had. Such a step counts as
                terminated, so that no value is bootstrapped.
        """
        own = own if gone is None else (own[0] | gone, own[1] & ~gone)
        terminated = own[0] | (game[0] & ~own[1])
        return terminated, ~terminated & (game[1] | own[1])

    @property
    def is_done(self) -> dict[str, Array]:
        """Return which members have ended, terminated or truncated, bool [n] by group."""
        return jax.tree.map(jnp.logical_or, self.terminated, self.truncated)


@struct.dataclass
class TimeStep:
    """Result of one environment step.

    Args:
        obs: Observation after the step.
        reward: Reward, []. Several rewards, of agents or of objectives, need a workflow that supports them.
        terminated: Whether the task ended, []. The value of the next observation is not bootstrapped.
        truncated: Whether the time limit ended the episode, []. The value of the next observation is
            bootstrapped.
        info: Additional arrays by name.
        member_ends: Agents of a multi-agent environment that have left the episode; None unless agents can
            leave before it ends.
        task_reward: The task's own reward, if a wrapper has changed `reward` for learning; otherwise None.
    """

    obs: PyTree
    reward: PyTree
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    info: dict[str, Array] = struct.field(default_factory=dict)
    member_ends: MemberEnds | None = None
    task_reward: PyTree = None

    @property
    def raw_reward(self) -> Any:
        """Return the task's own reward; the return of an episode is its sum."""
        return self.reward if self.task_reward is None else self.task_reward

    def with_shaped_reward(self, reward: Any) -> "TimeStep":
        """Return a copy with another reward for learning; the task's own reward is kept.

        Args:
            reward: Reward for learning, which replaces `reward`.
        """
        return replace(self, reward=reward, task_reward=self.raw_reward)

    def with_rewards(self, change: Callable[[Any], Any]) -> "TimeStep":
        """Return a copy in which a function is applied to the reward and, if it is set, to the task's own reward.

        Args:
            change: Function from a reward to a reward.
        """
        task = None if self.task_reward is None else change(self.task_reward)
        return replace(self, reward=change(self.reward), task_reward=task)


@struct.dataclass
class Transition:
    """One environment step, as data for learning."""

    obs: PyTree
    action: PyTree
    reward: PyTree
    next_obs: PyTree  # the true successor, never the observation after a reset
    terminated: Bool[Array, "*batch"]  # do not bootstrap
    truncated: Bool[Array, "*batch"]  # bootstrap, but cut traces and reset the recurrent state
    extras: dict[str, PyTree] = struct.field(default_factory=dict)
    discount: Float[Array, "*batch"] | None = None  # of the value of next_obs; None unless rows span several steps
    memory: Memory = None  # recurrent state before the step; None without one
    weight: PyTree = None  # weight of each row in the loss, float [*batch]; None for equal weights
    member_ends: MemberEnds | None = None  # after the step; None unless members may end before the episode
    members_done: PyTree = None  # members that had ended before the step and did not act, bool [n] by group
    burn_in: int = struct.field(pytree_node=False, default=0)  # initial steps of a sequence, which only warm up memory
    n_step: int = struct.field(pytree_node=False, default=1)  # number of rewards that a target on a sequence sums

    @property
    def is_done(self) -> Array:
        """Return whether the episode ended at this step, terminated or truncated."""
        return self.terminated | self.truncated

    @property
    def is_trace_end(self) -> Array:
        """Return whether traces end at this step, bool [*batch].

        They end if the episode ended, or if a member alone was truncated at this step, since the value of its
        successor is then bootstrapped.
        """
        if self.member_ends is None:
            return self.is_done
        new = jax.tree.map(lambda out, gone: (out & ~gone).any(-1), self.member_ends.truncated, self.members_done)
        return self.is_done | jnp.stack(jax.tree.leaves(new)).any(0)

    @property
    def training_steps(self) -> "Transition":
        """Return the steps to learn from: for sequences, leaves [steps, ...], the steps after the burn-in.

        The fields `memory` and `weight` have no axis of steps and stay the same.
        """
        if not self.burn_in:
            return self
        steps = jax.tree.map(lambda x: x[self.burn_in :], replace(self, memory=None, weight=None, burn_in=0))
        return replace(steps, memory=self.memory, weight=self.weight)


@struct.dataclass
class Sample:
    """Rows drawn from a replay buffer, leaves [*shape, ...].

    Sequences have their axis of steps just before the last axis of the shape. Their recurrent state is the
    one before the first step, leaves [*shape, ...].
    """

    rows: PyTree  # a Transition, or another kind of row
    index: Int[Array, "*shape"]  # indices of the rows in the replay buffer
    weight: Float[Array, "*shape"] | None = None  # in the loss; None for equal weights


@struct.dataclass
class Batch:
    """Input of the losses of an on-policy agent.

    The leaves share their leading axes, of which the last is time steps.
    """

    obs: PyTree
    raw_action: PyTree  # sample of the policy's distribution, before it is mapped to the action
    log_prob: PyTree  # log-probability of raw_action under the policy that sampled it
    value: PyTree  # value estimates before learning
    advantage: PyTree
    target: PyTree  # target of the value function
    done: PyTree = None  # whether the next step starts an episode, bool; None without recurrent state
    memory: Memory = None  # recurrent state before each step, or before the first step of each segment
    ensemble_values: PyTree = None  # all values of an ensemble, on the last axis; None for a single value function
    # probability under the policy that learns (before learning) / exp(log_prob); None if they are equal
    ratio: PyTree = None
    bootstrap_value: PyTree = None  # value of the successor at truncated steps and after the last step
    weight: PyTree = None  # 1 for rows to learn from, else 0; None to learn from all rows
