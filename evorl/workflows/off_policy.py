"""Train one off-policy agent: collect transitions, store them, and learn (DDPG, TD3, SAC, DQN)."""

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree

from evorl import mesh, tree
from evorl.agents.td3 import TD3
from evorl.errors import require, require_int
from evorl.n_step import NStepWindow, to_single_step
from evorl.normalize import RunningStatistics, get_member_shapes, update_obs_statistics
from evorl.parts import bind, part, resolve_numbers
from evorl.replay.ring import UNIFORM
from evorl.tree import resolve_env_params
from evorl.types import (
    ActorCritic,
    Env,
    Key,
    Metrics,
    Numbers,
    OffPolicyAgent,
    PolicyFn,
    ReplayBuffer,
    ReplayFactory,
    State,
    Transition,
)
from evorl.vector_env import UNLIMITED, EnvInstance, Rollout, RolloutPlan, TransitionStore, VectorEnv, hosts
from evorl.workflows import base, trajectories
from evorl.workflows.base import (
    check_positive,
    check_replay,
    replace_nan_envs,
    spread_samples,
    update_actor_on_batch,
    update_priorities,
)


@struct.dataclass
class OffPolicyState:
    numbers: Numbers
    env_params: PyTree
    agent: State
    envs: EnvInstance  # leaves [num_envs, ...]
    replay: ReplayBuffer
    window: NStepWindow | None  # transitions with less than n steps so far; None if not needed
    iteration: Int[Array, ""]
    obs_statistics: RunningStatistics | None  # of observations; None if they are not normalized


@part
class OffPolicy(base.BasePolicyWorkflow):
    """Train an off-policy agent: each iteration collects transitions and takes gradient steps on stored ones.

    An iteration takes num_steps steps in each of num_envs environments, then num_updates gradient steps of
    the critic. The first iteration takes random_steps random steps instead.

    The replay buffer holds transitions over n_step steps, or fewer at the end of an episode; the critic
    bootstraps from their last observation. If the replay buffer samples sequences, batch_size counts
    sequences, and the n_step rewards are summed when learning.

    With num_steps=0, the agent learns from demonstrations alone, with which the replay buffer is filled
    before the training.

    Args:
        env: Environment.
        agent: Off-policy agent.
        num_envs: Number of vectorized environments.
        num_steps: Number of steps of each environment per iteration; 0 to learn from demonstrations alone.
        num_updates: Number of gradient steps of the critic per iteration, a multiple of policy_delay.
        policy_delay: Number of gradient steps of the critic for each one of the actor and of the target networks.
            None for the agent's: 2 for TD3, 1 for all other agents.
        batch_size: Number of transitions in a batch, or of sequences.
        capacity: Maximum number of transitions in the replay buffer.
        replay: Factory of the replay buffer.
        random_steps: Number of env steps with random actions, in the first iteration; 0 for none.
        n_step: Number of steps of a transition, for n-step returns.
        eval_episodes: Number of episodes of an evaluation.
        scan_length: Maximum number of steps after which transitions are stored and the end of the rollout is
            tested.
        normalize_observations: Whether to normalize observations by the statistics of all collected ones; the
            replay buffer stores them as they are.
    """

    env: Env
    agent: OffPolicyAgent = field(default_factory=TD3)
    num_envs: int = 16
    num_steps: int = 4
    num_updates: int = 64
    policy_delay: int | None = None
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: ReplayFactory = UNIFORM
    random_steps: int = 1_000
    n_step: int = 1
    eval_episodes: int = 16
    scan_length: int = 20
    normalize_observations: bool = False

    inherited: ClassVar[tuple[str, ...]] = ("agent", "obs_statistics")

    def __post_init__(self) -> None:
        base.fill_agent_spaces(self)
        check_positive(self, "num_envs", "num_updates")
        if self.policy_delay is not None:
            require_int("policy_delay", self.policy_delay)
        require_int("num_steps", self.num_steps, 0)
        check_positive(self, "batch_size", "n_step", "eval_episodes", "scan_length")
        check_replay(self)
        longest = self.env.max_episode_steps
        require(self.n_step <= longest, "n_step", self.n_step, f"must be at most max_episode_steps, {longest}")
        discounts = not self.has_n_step_window or hasattr(self.agent, "discount")
        require(
            discounts, "n_step", self.n_step, f"must be 1, since {type(self.agent).__name__} has no single discount"
        )
        whole = self.num_updates % self.critic_steps == 0
        require(whole, "num_updates", self.num_updates, f"must be a multiple of policy_delay, {self.critic_steps}")
        collects = self.num_steps > 0 or not self.normalize_observations
        require(collects, "normalize_observations", "true", "needs rollouts (num_steps above 0)")

    @property
    def critic_steps(self) -> int:
        """Return the number of gradient steps of the critic for each one of the actor and of the target networks."""
        return self.policy_delay or getattr(self.agent, "policy_delay", 1)

    @property
    def has_n_step_window(self) -> bool:
        """Return whether n-step transitions are built before they are stored; sequences build them when learning."""
        return self.n_step > 1 and not self.replay.has_sequences

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments in which the agent collects and is evaluated."""
        steps = max(self.num_steps, 1)
        chunks = -(-steps // self.scan_length)
        starts = min(4, steps)  # per environment; a rollout with more episodes reuses them
        every = -(-steps // chunks)
        sizes = {"num_envs": self.num_envs, "eval_episodes": self.eval_episodes}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=every, num_rollout_starts=starts)

    def state_sharding(self, state: OffPolicyState) -> OffPolicyState:
        return tree.fill_fields(OffPolicyState, "", envs=mesh.ENVS)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        The first iteration takes random_steps instead. If the replay buffer stores sequences, later
        iterations also take random steps until the first sequence is complete.
        """
        steps = self.num_envs * self.num_steps
        most = max(steps, self.initial_env_steps) if self.replay.has_sequences else steps
        return {"env_steps": (steps, most), "gradient_steps": (self.num_updates, self.num_updates)}

    @property
    def prefill_steps(self) -> int:
        """Return the number of random steps of each environment in the first iteration; 0 if there are none."""
        if self.random_steps == 0:
            return 0
        return max(-(-self.random_steps // self.num_envs), self.n_step)  # fewer steps complete no transition

    @property
    def initial_env_steps(self) -> int:
        """Return the number of env steps of the first iteration."""
        return self.num_envs * (self.prefill_steps or self.num_steps)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> OffPolicyState:
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        bound = bind(self, numbers)
        agent = bound.agent.init(key)
        envs, row = bound.vector_env.init_blank_envs(agent.actor.params, env_params)
        statistics = RunningStatistics.empty(get_member_shapes(row, row.obs)) if self.normalize_observations else None
        window = None
        if self.has_n_step_window:
            hosted, apart = bool(hosts.collect_leases(envs)), hosts.has_late_answers(env_params)
            window = NStepWindow.empty(self.n_step - 1, self.num_envs, row, hosted, apart)
            row = window.widen_row(row)
        replay = self.replay.empty(self.capacity, row, self.num_envs)
        return OffPolicyState(numbers, env_params, agent, envs, replay, window, jnp.int32(0), statistics)

    def count_env_steps(self, state: OffPolicyState) -> Array:
        """Return the number of env steps so far, as if the first iteration had the same length as the others.

        Args:
            state: State of the workflow.
        """
        return state.iteration.astype(jnp.float32) * self.num_envs * self.num_steps

    def plan(self, state: OffPolicyState, key: Key) -> tuple[RolloutPlan, None]:
        """Plan num_steps exploring steps of every environment, or the random steps."""
        del key
        random = (state.replay.size == 0) & (self.random_steps > 0)
        plan = RolloutPlan(
            self.vector_env.make_starts(every=random),
            restart=(state.iteration == 0) | random,
            episodes=UNLIMITED,
            steps=jnp.where(random, self.prefill_steps, self.num_steps),
            params=tree.broadcast(state.agent.actor.params, 1),
            explores=True,
            random_actions=random,
            stores=True,
        )
        return plan, None

    def plan_evaluation(self, state: OffPolicyState, key: Key) -> RolloutPlan:
        """Plan greedy episodes."""
        del key
        params = tree.broadcast(state.agent.actor.params, 1)
        return self.vector_env.plan_evaluation(params, explores=False, random=False, stores=False)

    def rollout(self, state: OffPolicyState, plan: RolloutPlan, key: Key) -> tuple[OffPolicyState, Rollout]:
        """Run a plan; add its transitions to the replay buffer if the plan stores them, as an evaluation's does not."""
        window = state.window
        if window is not None:  # random steps start new episodes, so the window is cleared
            window = replace(window, num_filled=jnp.where(jnp.asarray(plan.random_actions), 0, window.num_filled))
            if hosts.collect_leases(state.envs):
                window = window.truncate(hosts.get_leases(state.envs.env_state) <= 0)
        into = state.replay, window, jnp.int32(plan.steps), state.obs_statistics
        store = TransitionStore(self.vector_env.scan_length, into, self.make_store_function(jnp.asarray(plan.stores)))
        played = self.vector_env.rollout(self.behaviour(state), state.env_params, plan, state.envs, key, store)
        replay, window, _, statistics = played.stored
        state = replace(state, replay=replay, window=window, obs_statistics=statistics)
        return state, replace(played, stored=None)

    def learn_from(
        self, state: OffPolicyState, carry: None, played: Rollout, key: Key
    ) -> tuple[OffPolicyState, Metrics]:
        del carry
        rounds = jnp.int32(self.num_updates // self.critic_steps)
        state, metrics = self.learn(replace(state, envs=played.envs), key, rounds)
        return replace(state, iteration=state.iteration + 1), played.metrics() | metrics

    def make_store_function(
        self, storing: Bool[Array, ""]
    ) -> Callable[[tuple[ReplayBuffer, Any, Array, Any], Transition, Array], Any]:
        """Return the function that adds the complete transitions of each scan to the replay buffer.

        It also adds their observations to the statistics.

        When it stores, every environment takes the same number of steps, except on the host if a step does
        not wait for all of them.

        Args:
            storing: Whether to store transitions, [].

        Returns:
            A function of (replay buffer, window, remaining steps, statistics), transitions with leaves [scan_length,
            n, ...] and their mask [scan_length, n], which returns the new (replay buffer, window, remaining steps,
            statistics).
        """

        def store(
            stored: tuple[ReplayBuffer, Any, Array, Any], transitions: Transition, mask: Array
        ) -> tuple[ReplayBuffer, Any, Array, Any]:
            replay, window, left, statistics = stored
            steps = jnp.minimum(left, len(mask))
            statistics = update_obs_statistics(statistics, transitions, mask & storing)
            if self.has_n_step_window:
                taken = steps
                if window.num_filled.ndim:
                    lost = trajectories.find_lost_transitions(transitions, mask)
                    taken = (mask | lost).sum(0)
                else:
                    lost = None if window.lost_mask is None else ~mask & (jnp.arange(len(mask)) < steps)[:, None]
                window, transitions, there = window.push(transitions, jnp.where(storing, taken, 0), lost)
                mask = jnp.broadcast_to(there if there.ndim == 2 else there[:, None], mask.shape)
            return replay.add(transitions, mask & storing), window, left - steps, statistics

        return store

    @jax.named_scope("learning")
    def learn(self, state: OffPolicyState, key: Key, rounds: Int[Array, ""]) -> tuple[OffPolicyState, Metrics]:
        """Run rounds of critic_steps gradient steps of the critic and one of the actor, if there is an actor.

        A vmapped copy with an empty replay buffer does not learn. Its replay buffer is empty if all its
        transitions have contained NaN from the start.

        Args:
            state: State of the workflow.
            key: Random key.
            rounds: Number of rounds, [].

        Returns:
            The new state and the mean metrics.
        """
        there = state.replay.size > 0
        # same rounds for all vmapped copies, as otherwise each round would select between old and new agents
        rounds = jnp.where(tree.any_unbatched(there), rounds, 0)
        discounted: Any = self.agent

        def update_critic(agent: Any, sample_and_key: Any) -> tuple[Any, Metrics]:
            sample, key = sample_and_key
            batch = replace(sample.rows, weight=sample.weight)
            if self.has_n_step_window:
                batch = to_single_step(batch, discounted.discount)
            return self.agent.update_critic(agent, lambda params: self.agent.critic_loss(params, agent, batch, key))

        def learn_once(i: Array, agent: Any, replay: ReplayBuffer) -> tuple[Any, ReplayBuffer, Metrics]:
            key_batch, key_critic, key_actor = jax.random.split(jax.random.fold_in(key, i), 3)
            samples = spread_samples(replay.sample(key_batch, (self.critic_steps, self.batch_size)))
            if self.replay.has_sequences:
                samples = replace(samples, rows=replace(samples.rows, n_step=self.n_step))
            seen = {name: self.normalize_obs(state, getattr(samples.rows, name)) for name in ("obs", "next_obs")}
            samples = replace(samples, rows=replace(samples.rows, **seen))
            keys = jax.random.split(key_critic, self.critic_steps)
            agent, critic_metrics = jax.lax.scan(update_critic, agent, (samples, keys))
            replay, critic_metrics = update_priorities(replay, samples.index, critic_metrics)
            metrics = tree.mean(critic_metrics)
            if isinstance(self.agent, ActorCritic):
                last = tree.index(samples.rows, -1)
                agent, actor_metrics = update_actor_on_batch(self.agent, agent, last, key_actor)
                metrics |= actor_metrics
            return self.agent.update_targets(agent), replay, metrics

        agent, replay, metrics = base.loop_with_replay(rounds, learn_once, state.agent, state.replay)
        metrics |= {"gradient_steps": rounds * self.critic_steps}
        there = tree.mask_if_batched(there)
        state = replace(state, agent=tree.select(there, agent, state.agent), replay=replay)
        return state, tree.select(there, metrics, tree.zeros_like(metrics))

    def policy(self, state: OffPolicyState, explores: bool = False) -> PolicyFn:
        """Return the policy of the agent."""
        return self.behaviour(state).bind_params(state.agent.actor.params, explores)

    def inherit(self, state: OffPolicyState, parent: OffPolicyState) -> OffPolicyState:
        """Return the state with the agent, statistics and hyperparameters of the parent; the rest stays.

        The agent includes the optimizer state. An environment that contains NaN, or whose last transitions
        do, is replaced by the parent's environment with the same index.
        """
        state = super().inherit(state, parent)
        window, theirs = state.window, parent.window
        if window is None or theirs is None:
            return replace(state, envs=replace_nan_envs(state.envs, parent.envs))
        envs, rows = replace_nan_envs((state.envs, window.rows), (parent.envs, theirs.rows), (0, 1))
        return replace(state, envs=envs, window=replace(window, rows=rows))
