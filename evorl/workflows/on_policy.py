"""Train one on-policy agent: collect a rollout, then learn from it (PPO, A2C, IMPALA, Puffer)."""

from dataclasses import field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, PyTree

from evorl import mesh, tree
from evorl.agents.memory import is_recurrent
from evorl.agents.ppo import PPO
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.normalize import RunningStatistics, get_member_shapes, mask_members
from evorl.parts import bind, part, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import (
    AdvantageRecomputer,
    Batch,
    EnsembleValueAgent,
    Env,
    Key,
    Metrics,
    Numbers,
    OnPolicyAgent,
    Params,
    PolicyFn,
    State,
    Transition,
)
from evorl.vector_env import UNLIMITED, EnvInstance, Rollout, RolloutPlan, TransitionStore, VectorEnv, hosts
from evorl.workflows import base, segments
from evorl.workflows.base import check_positive, replace_nan_envs
from evorl.workflows.minibatch_epochs import run_epochs, standardize_advantages
from evorl.workflows.refreshed_epochs import NEVER, REFRESH, RefreshedEpochs
from evorl.workflows.sampling import SHUFFLED, Sampling, Shuffled
from evorl.workflows.trajectories import Trajectories


@struct.dataclass
class OnPolicyState:
    numbers: Numbers | None  # None if the state of an outer workflow holds them
    env_params: PyTree
    agent: State
    envs: EnvInstance  # leaves [num_envs, ...]
    stale_params: Params  # actor params before each of the last `staleness` iterations, leaves [staleness, ...]
    obs_statistics: RunningStatistics | None  # of observations; None if they are not normalized
    reward_statistics: RunningStatistics | None  # of absolute rewards; None if values are not normalized
    iteration: Int[Array, ""]


@part
class OnPolicy(base.BasePolicyWorkflow):
    """Train an on-policy agent: each iteration collects a rollout and learns from it in epochs of minibatches.

    A rollout consists of num_steps steps of num_envs environments. An epoch takes a gradient step on every
    minibatch of batch_size steps, in random order or as `sampling` draws them.

    Observations are normalized with the statistics from before the iteration, so that acting and learning see
    the same observations. Values are learned in units of `value_scale`, which is computed from all rewards so
    far, including those of the current rollout.

    Args:
        env: Environment.
        agent: On-policy agent.
        num_envs: Number of vectorized environments.
        num_steps: Number of steps of each environment in a rollout; 0 for the maximum length of an episode.
        num_epochs: Number of epochs over each rollout.
        batch_size: Number of steps in a minibatch; it must divide num_envs * num_steps. 0 for the whole
            rollout.
        normalize_observations: Whether to normalize observations.
        normalize_values: Whether to learn values in units of `value_scale`.
        normalize_advantages: Whether to standardize advantages.
        staleness: Number of iterations by which the policy that acts is older than the learner, as with
            asynchronous actors.
        sampling: Sampling of the segments of a minibatch.
        refresh: When advantages are estimated again: "never", or before each "epoch" or "minibatch". The new
            estimate uses the value and the probability ratio that each step had when the agent last learned
            from it.
        eval_episodes: Number of episodes of an evaluation.
    """

    env: Env
    agent: OnPolicyAgent = field(default_factory=PPO)
    num_envs: int = 64
    num_steps: int = 32
    num_epochs: int = 4
    batch_size: int = 256
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True
    staleness: int = 0
    sampling: Sampling = SHUFFLED
    refresh: str = NEVER
    eval_episodes: int = 64

    inherited: ClassVar[tuple[str, ...]] = ("agent", "stale_params", "obs_statistics", "reward_statistics")

    def __post_init__(self) -> None:
        base.fill_agent_spaces(self)
        if self.num_steps == 0:
            object.__setattr__(self, "num_steps", self.env.max_episode_steps)
        if self.batch_size == 0:
            object.__setattr__(self, "batch_size", self.num_transitions)
        check_positive(self, "num_envs", "num_steps", "num_epochs", "batch_size", "eval_episodes")
        require_int("staleness", self.staleness, 0)
        divides = self.num_transitions % self.batch_size == 0
        require(divides, "batch_size", self.batch_size, f"must divide num_envs * num_steps, {self.num_transitions}")
        given, steps = self.sampling.length, self.num_steps
        require(steps % (given or steps) == 0, "sampling.length", given, f"must divide num_steps, {steps}")
        whole = self.batch_size % self.segment_length == 0
        require(
            whole, "batch_size", self.batch_size, f"must be a multiple of the segment length, {self.segment_length}"
        )
        if self.refresh not in REFRESH:
            raise unknown_name_error("refresh", self.refresh, REFRESH)
        several = isinstance(self.agent, EnsembleValueAgent) and self.agent.num_values > 1
        if self.refresh != NEVER and (several or not isinstance(self.agent, AdvantageRecomputer)):
            raise OptionError(
                f"refresh={self.refresh}: needs an agent that implements types.AdvantageRecomputer, with num_values=1"
            )

    @property
    def num_transitions(self) -> int:
        """Return the number of transitions in a rollout."""
        return self.num_envs * self.num_steps

    @property
    def segment_length(self) -> int:
        """Return the number of steps in a segment: by default 1, or num_steps for a recurrent agent."""
        return self.sampling.length or (self.num_steps if is_recurrent(self.agent) else 1)

    @property
    def segments_per_minibatch(self) -> int:
        """Return the number of segments in a minibatch."""
        return self.batch_size // self.segment_length

    @property
    def is_plain(self) -> bool:
        """Return whether every epoch uses each segment once, with advantages that are estimated only once."""
        return type(self.sampling) is Shuffled and self.refresh == NEVER

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments in which the agent collects and is evaluated."""
        starts = min(4, self.num_steps)  # per environment; a rollout with more episodes reuses them
        sizes = {"num_envs": self.num_envs, "eval_episodes": self.eval_episodes}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=self.num_steps, num_rollout_starts=starts)

    def state_sharding(self, state: OnPolicyState) -> OnPolicyState:
        return tree.fill_fields(OnPolicyState, "", envs=mesh.ENVS)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name."""
        updates = self.num_transitions // self.batch_size
        return {
            "env_steps": (self.num_transitions, self.num_transitions),
            "gradient_steps": (updates, updates * self.num_epochs),
        }

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> OnPolicyState:
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        bound = bind(self, numbers)
        agent = bound.agent.init(key)
        envs, row = bound.vector_env.init_blank_envs(agent.actor.params, env_params)
        older = tree.broadcast(agent.actor.params, self.staleness) if self.staleness else None
        statistics, rewards = (
            RunningStatistics.empty(get_member_shapes(row, x)) if normalizes else None
            for x, normalizes in ((row.obs, self.normalize_observations), (row.reward, self.normalize_values))
        )
        return OnPolicyState(numbers, env_params, agent, envs, older, statistics, rewards, jnp.int32(0))

    def count_env_steps(self, state: OnPolicyState) -> Array:
        """Return the number of env steps so far, [] float32.

        Args:
            state: State of the workflow.
        """
        return state.iteration.astype(jnp.float32) * self.num_transitions

    def plan(self, state: OnPolicyState, key: Key) -> tuple[RolloutPlan, None]:
        """Plan num_steps exploring steps of every environment."""
        del key
        params = tree.index(state.stale_params, 0) if self.staleness else state.agent.actor.params
        plan = RolloutPlan(
            self.vector_env.make_starts(),
            restart=state.iteration == 0,  # later rollouts continue where the last one ended
            episodes=UNLIMITED,
            steps=self.num_steps,
            params=tree.broadcast(params, 1),
            explores=True,
        )
        return plan, None

    def plan_evaluation(self, state: OnPolicyState, key: Key) -> RolloutPlan:
        """Plan greedy episodes."""
        del key
        return self.vector_env.plan_evaluation(tree.broadcast(state.agent.actor.params, 1), explores=False)

    def rollout(self, state: OnPolicyState, plan: RolloutPlan, key: Key) -> tuple[OnPolicyState, Rollout]:
        """Run a plan and keep its last num_steps steps as transitions, leaves [num_steps, num_envs, ...].

        If a step on the host does not wait for all environments, each environment has its own consecutive
        steps, and some environments may have fewer than num_steps.
        """
        behaviour = self.behaviour(state)
        shapes = self.vector_env.init_blank_envs(state.agent.actor.params, state.env_params)[1]
        if hosts.has_late_answers(state.env_params):
            apart = Trajectories.empty(shapes, self.num_steps, self.num_envs)
            store = TransitionStore(-(-self.num_steps // 8), apart, Trajectories.add)
            played = self.vector_env.rollout(behaviour, state.env_params, plan, state.envs, key, store)
            return state, replace(played, stored=played.stored.transitions)
        shapes = replace(shapes, weight=jax.ShapeDtypeStruct((), jnp.float32))
        nothing = tree.broadcast(tree.zeros_like(shapes), self.num_steps, self.num_envs)

        def store_rollout(_: Any, transitions: Transition, mask: Array) -> Transition:
            return segments.weight_steps(transitions, mask)

        store = TransitionStore(self.num_steps, nothing, store_rollout)  # the whole rollout
        return state, self.vector_env.rollout(behaviour, state.env_params, plan, state.envs, key, store)

    def learn_from(self, state: OnPolicyState, carry: None, played: Rollout, key: Key) -> tuple[OnPolicyState, Metrics]:
        del carry
        state, metrics = self.learn(replace(state, envs=played.envs), played.stored, key)
        return state, played.metrics() | metrics

    def collect(self, state: OnPolicyState, key: Key) -> tuple[OnPolicyState, Transition, Metrics]:
        """Collect a rollout.

        Args:
            state: State of the workflow.
            key: Random key.

        Returns:
            The new state, the transitions, leaves [num_steps, num_envs, ...], and the metrics of the rollout.
        """
        state, played = self.rollout(state, self.plan(state, key)[0], key)
        return replace(state, envs=played.envs), played.stored, played.metrics()

    @base.with_numbers_of_state
    @jax.named_scope("learning")
    def learn(self, state: OnPolicyState, rollout: Transition, key: Key) -> tuple[OnPolicyState, Metrics]:
        """Learn from a rollout in num_epochs epochs.

        Args:
            state: State of the workflow.
            rollout: Transitions, leaves [num_steps, num_envs, ...].
            key: Random key.

        Returns:
            The new state and the metrics.
        """
        state, batch = self.prepare_batch(state, rollout)
        return self.update_on_batch(state, rollout, batch, key, jnp.int32(self.num_epochs))

    @base.with_numbers_of_state
    def prepare_batch(self, state: OnPolicyState, rollout: Transition) -> tuple[OnPolicyState, Batch]:
        """Update the reward statistics with a rollout, and build its batch.

        Args:
            state: State of the workflow.
            rollout: Transitions, leaves [num_steps, num_envs, ...].

        Returns:
            The state and the batch, leaves [num_steps, num_envs, ...]. Advantages are in units of the
            rewards, values in units of `value_scale`.
        """
        if state.reward_statistics is not None:
            sizes = jax.tree.map(jnp.abs, rollout.reward)
            rewards = state.reward_statistics.update(sizes, mask_members(rollout, sizes, segments.valid_rows(rollout)))
            state = replace(state, reward_statistics=rewards)
        batch = self.build_batch(state, replace(rollout, weight=None))
        if rollout.weight is not None and self.segment_length > 1:  # a segment may have lost or missing steps
            batch = segments.weigh_batch(batch, rollout.weight)
        return state, batch if self.refresh != NEVER else replace(batch, ratio=None, bootstrap_value=None)

    @base.with_numbers_of_state
    def update_on_batch(
        self, state: OnPolicyState, rollout: Transition, batch: Batch, key: Key, num_epochs: Int[Array, ""]
    ) -> tuple[OnPolicyState, Metrics]:
        """Learn from the batch of a rollout in epochs, then add its observations to the statistics.

        Args:
            state: State of the workflow.
            rollout: Transitions, leaves [num_steps, num_envs, ...].
            batch: Batch of the rollout, from `prepare_batch`.
            key: Random key.
            num_epochs: Number of epochs, [].

        Returns:
            The new state and the metrics.
        """
        valid = None
        if rollout.weight is not None:
            valid, has_any = segments.valid_segments(rollout.weight, self.segment_length)
            num_epochs = jnp.where(has_any, num_epochs, 0)
        segmented = self.split_batch(batch)
        if self.is_plain:
            segmented = standardize_advantages(segmented, valid) if self.normalize_advantages else segmented
            agent, metrics, done = run_epochs(
                self.agent, state.agent, segmented, key, num_epochs, self.segments_per_minibatch, valid
            )
        else:
            epochs = self.make_refreshed_epochs(state, rollout, batch)
            agent, metrics, done = epochs.run(state.agent, segmented, key, num_epochs, valid)
        older, statistics = state.stale_params, state.obs_statistics
        if self.staleness:
            older = tree.shift_in(older, state.agent.actor.params)
        if statistics is not None:
            statistics = statistics.update(
                rollout.obs, mask_members(rollout, rollout.obs, segments.valid_rows(rollout))
            )
        state = replace(
            state, agent=agent, stale_params=older, obs_statistics=statistics, iteration=state.iteration + 1
        )
        return state, metrics | {"gradient_steps": done * (self.num_transitions // self.batch_size)}

    def make_refreshed_epochs(self, state: OnPolicyState, rollout: Transition, batch: Batch) -> RefreshedEpochs:
        """Return the epochs for advantages that are estimated again, or for segments that are sampled.

        Args:
            state: State of the workflow.
            rollout: Transitions, leaves [num_steps, num_envs, ...].
            batch: Batch of the rollout.
        """

        def estimate_advantages(value: Array, ratio: Array) -> tuple[Array, Array]:
            agent: Any = self.agent
            t, scale = self.scale_rewards(state, rollout)
            value, ratio = (segments.join_segments(x, self.num_envs) for x in (value, ratio))
            advantage, target = agent.compute_advantages(t, ratio, value, batch.bootstrap_value)
            advantage = advantage if batch.weight is None else advantage * batch.weight
            return segments.split_into_segments((advantage * scale, target), self.segment_length)

        size, normalized = self.segments_per_minibatch, self.normalize_advantages
        return RefreshedEpochs(self.agent, self.sampling, size, normalized, self.refresh, estimate_advantages)

    def build_batch(self, state: OnPolicyState, rollout: Transition) -> Batch:
        """Return the agent's batch of a rollout, with normalized observations, leaves [num_steps, num_envs, ...]."""
        obs, next_obs = self.normalize_obs(state, rollout.obs), self.normalize_obs(state, rollout.next_obs)
        t, scale = self.scale_rewards(state, replace(rollout, obs=obs, next_obs=next_obs))
        late = hosts.has_late_answers(state.env_params)  # an answer may belong to an action of older parameters
        acted = self.staleness == 0 and not late
        batch = self.agent.build_batch(state.agent.actor.params, t, acted_by_current_params=acted)
        return replace(batch, advantage=jax.tree.map(jnp.multiply, batch.advantage, scale))

    def scale_rewards(self, state: OnPolicyState, rollout: Transition) -> tuple[Transition, Any]:
        """Divide the rewards of a rollout by the unit of the values.

        Args:
            state: State of the workflow.
            rollout: Transitions, leaves [num_steps, num_envs, ...].

        Returns:
            The rollout and the unit; in a multi-agent environment, one unit for each group.
        """
        scale = self.value_scale(state)
        if not self.normalize_values:
            scale = jax.tree.map(lambda _: scale, rollout.reward)
        return replace(rollout, reward=jax.tree.map(jnp.divide, rollout.reward, scale)), scale

    def split_batch(self, batch: Batch) -> Batch:
        """Split a batch into segments, each with the recurrent state before its first step.

        Args:
            batch: Batch, leaves [num_steps, num_envs, ...].

        Returns:
            The segments, leaves [n, steps, ...].
        """
        memory = tree.merge_axes(tree.index(batch.memory, slice(None, None, self.segment_length)))
        return replace(segments.split_into_segments(replace(batch, memory=None), self.segment_length), memory=memory)

    def value_scale(self, state: OnPolicyState) -> Any:
        """Return the factor [] that converts values of the network to returns.

        It is the mean absolute reward so far times the horizon, which is 1 / (1 - discount), or the maximum
        length of an episode if that is shorter. In a multi-agent environment, each group has its own factor,
        common to its members.

        Args:
            state: State of the workflow, with the reward statistics.
        """
        if state.reward_statistics is None:
            return 1.0
        horizon = float(self.env.max_episode_steps)
        discount = getattr(self.agent, "discount", None)  # None for a team of several agents
        if discount is not None:
            horizon = jnp.minimum(1 / (1 - discount), horizon)
        return jax.tree.map(lambda size: jnp.where(size > 0, size, 1.0) * horizon, state.reward_statistics.mean)

    def policy(self, state: OnPolicyState, explores: bool = False) -> PolicyFn:
        """Return the policy of the agent."""
        return self.behaviour(state).bind_params(state.agent.actor.params, explores)

    def inherit(self, state: OnPolicyState, parent: OnPolicyState) -> OnPolicyState:
        """Return the state with the agent, statistics and hyperparameters of the parent; the environments stay.

        An environment that contains NaN is replaced by the parent's.
        """
        state = super().inherit(state, parent)
        return replace(state, envs=replace_nan_envs(state.envs, parent.envs))
