"""One agent that collects, stores and learns: the loop of DDPG, TD3 and SAC."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import hyperparameters, mesh, tree
from evorl.errors import require
from evorl.hyperparameters import as_state
from evorl.n_step import Window, fold
from evorl.replay import UNIFORM
from evorl.types import (
    ActorCritic,
    Env,
    Hyperparams,
    Key,
    Metrics,
    OffPolicyAgent,
    Prioritizes,
    Replay,
    Replays,
    SlotPolicy,
    Transition,
)
from evorl.vector_env import UNLIMITED, Behaviour, Plan, Played, Store, VectorEnv, hosts
from evorl.workflows import base, trajectories
from evorl.workflows.base import check_positive, check_replay, descend_actor, repeat, revived, told


@struct.dataclass
class OffPolicyState:
    hyperparams: Any
    env_params: Any
    agent: Any
    slots: Any  # leaves [num_envs, ...]
    replay: Any  # a Replay
    window: Any  # of transitions whose n steps are not complete, () where n_step is 1
    iteration: Any  # [] int32


@dataclass(frozen=True)
class OffPolicy:
    """An iteration is num_steps steps of num_envs environments, then num_updates gradient steps of the critic.

    The actor moves once per actor_interval of them. The first iteration acts at random for random_steps instead.
    The replay holds transitions over n_step steps, or up to the end of an episode, whose value the critic bootstraps.
    Where it gives sequences, batch_size counts them, and n_step rewards are summed when learning.
    """

    env: Env
    agent: OffPolicyAgent
    num_envs: int = 16
    num_steps: int = 4
    num_updates: int = 64
    actor_interval: int = 2
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: Replays = UNIFORM
    random_steps: int = 1_000
    n_step: int = 1
    eval_episodes: int = 16
    chunk: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "num_envs", "num_steps", "num_updates", "actor_interval")
        check_positive(self, "batch_size", "n_step", "eval_episodes", "chunk")
        check_replay(self)
        longest = self.env.max_episode_steps
        require(self.n_step <= longest, "n_step", self.n_step, f"must be at most the steps of an episode, {longest}")
        interval = self.actor_interval
        whole = self.num_updates % interval == 0
        require(whole, "num_updates", self.num_updates, f"must be a multiple of actor_interval, {interval}")

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.of(self.agent)

    @property
    def window(self) -> bool:
        """Whether rows are put together over several steps before they are stored; of sequences, when learning."""
        return self.n_step > 1 and not self.replay.sequences

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which it collects and evaluates."""
        chunks = -(-self.num_steps // self.chunk)
        starts = min(4, self.num_steps)  # of four times num_envs starts a rollout may use some twice
        every = -(-self.num_steps // chunks)
        return VectorEnv(self.env, self.agent, self.num_envs, 1, starts, self.eval_episodes, every)

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent."""
        return self.vector_env.parallel

    def axes(self, state: OffPolicyState) -> OffPolicyState:
        return OffPolicyState("", "", "", mesh.SLOTS, "", "", "")

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes; the first one takes random_steps instead.

        Where the replay keeps sequences, others take them too, until one is whole.
        """
        steps = self.num_envs * self.num_steps
        most = max(steps, self.first_steps) if self.replay.sequences else steps
        return {"env_steps": (steps, most), "gradient_steps": (self.num_updates, self.num_updates)}

    @property
    def prefill(self) -> int:
        """Steps of each environment at random, which the first iteration takes; 0 where there are none."""
        if self.random_steps == 0:
            return 0
        return max(-(-self.random_steps // self.num_envs), self.n_step)  # of fewer steps no transition is whole

    @property
    def first_steps(self) -> int:
        """The env steps of the first iteration."""
        return self.num_envs * (self.prefill or self.num_steps)

    def init(self, key: Key, hyperparams: Hyperparams, env_params: Any = None) -> OffPolicyState:
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        agent = self.agent.init(key, hyperparams)
        slots, row = self.vector_env.blank(agent.actor.params, hyperparams, env_params)
        window = ()
        if self.window:
            hosted, apart = bool(hosts.held(slots)), self.vector_env.world(env_params).batch > 0
            window = Window.empty(self.n_step - 1, self.num_envs, row, hosted, apart)
            row = window.widen(row)
        replay = self.replay.empty(self.capacity, row, self.num_envs)
        return OffPolicyState(hyperparams, env_params, agent, slots, replay, window, jnp.int32(0))

    def step(self, state: OffPolicyState, key: Key) -> tuple[OffPolicyState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: OffPolicyState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def plan(self, state: OffPolicyState, key: Key) -> tuple[Plan, tuple[()]]:
        """num_steps steps of every environment, exploring; or the random ones."""
        del key
        random = (state.replay.size == 0) & (self.random_steps > 0)
        plan = Plan(
            self.vector_env.starts(every=random),
            restart=(state.iteration == 0) | random,
            episodes=UNLIMITED,
            steps=jnp.where(random, self.prefill, self.num_steps),
            params=tree.broadcast(state.agent.actor.params, 1),
            explores=True,
            random=random,
            stores=True,
        )
        return plan, ()

    def exam(self, state: OffPolicyState, key: Key) -> Plan:
        """Whole episodes, greedily."""
        del key
        params = tree.broadcast(state.agent.actor.params, 1)
        return self.vector_env.exam(params, explores=False, random=False, stores=False)

    def play(self, state: OffPolicyState, plan: Plan, key: Key) -> tuple[OffPolicyState, Played]:
        """What was played, and the state with it in its replay."""
        window = state.window
        if self.window:  # whose episodes do not go on where new ones start
            window = replace(window, filled=jnp.where(plan.random, 0, window.filled))
            if hosts.held(state.slots):
                window = window.cut(hosts.leases(state.slots.env_state) <= 0)
        into = state.replay, window, jnp.int32(plan.steps)
        store = Store(self.vector_env.chunk, into, self.storing(jnp.asarray(plan.stores)))
        played = self.vector_env.play(self.behaviour(state), state.env_params, plan, state.slots, key, store)
        replay, window, _ = played.stored
        return replace(state, replay=replay, window=window), replace(played, stored=())

    def absorb(
        self, state: OffPolicyState, carry: tuple[()], played: Played, key: Key
    ) -> tuple[OffPolicyState, Metrics]:
        del carry
        rounds = jnp.int32(self.num_updates // self.actor_interval)
        state, metrics = self.learn(replace(state, slots=played.slots), key, rounds)
        return replace(state, iteration=state.iteration + 1), played.metrics() | metrics

    def report(self, state: OffPolicyState, played: Played) -> Metrics:
        del state
        return played.stats.evaluation()

    def behaviour(self, state: OffPolicyState) -> Behaviour:
        """How the agent acts in one environment."""
        return Behaviour(self.env, self.agent, self.now(state))

    def storing(self, storing: Bool[Array, ""]) -> Callable[[tuple[Replay, Any, Array], Transition, Array], Any]:
        """Puts what each chunk completes into the replay, where storing.

        Every slot takes the same steps then, but on the host where not all are waited for.
        """

        def store(stored: tuple[Replay, Any, Array], transitions: Transition, mask: Array) -> tuple[Replay, Any, Array]:
            replay, window, left = stored
            steps = jnp.minimum(left, len(mask))
            if self.window:
                taken = steps
                if window.filled.ndim:
                    lost = trajectories.lost(transitions, mask)
                    taken = (mask | lost).sum(0)
                else:
                    lost = None if isinstance(window.lost, tuple) else ~mask & (jnp.arange(len(mask)) < steps)[:, None]
                window, transitions, there = window.advance(transitions, jnp.where(storing, taken, 0), lost)
                mask = jnp.broadcast_to(there if there.ndim == 2 else there[:, None], mask.shape)
            return replay.add(transitions, mask & storing), window, left - steps

        return store

    def now(self, state: OffPolicyState) -> Hyperparams:
        """The hyperparameters as they are by this iteration."""
        return hyperparameters.at(
            state.hyperparams, state.iteration.astype(jnp.float32) * self.num_envs * self.num_steps
        )

    @jax.named_scope("learning")
    def learn(self, state: OffPolicyState, key: Key, rounds: Int[Array, ""]) -> tuple[OffPolicyState, Metrics]:
        """rounds times actor_interval steps of the critic and one of the actor, where there is one.

        None of a copy whose replay is empty, as that of one whose numbers were lost from the start.
        """
        hyperparams = self.now(state)
        there = state.replay.size > 0
        # of any vmapped copy: copies that differed in it would each select over their agents in every round
        rounds = jnp.where(tree.any_unbatched(there), rounds, 0)
        changes = isinstance(state.replay, Prioritizes)  # else no loop carries it

        def update_critic(agent: Any, sample_and_key: Any) -> tuple[Any, Metrics]:
            sample, key = sample_and_key
            batch = replace(sample.rows, weight=sample.weight)
            if self.window:
                batch = fold(batch, hyperparams.discount)
            return self.agent.update_critic(
                agent, lambda params: self.agent.critic_loss(params, agent, batch, key, hyperparams), hyperparams
            )

        def learn_once(i: Array, carry: tuple[Any, Any]) -> tuple[tuple[Any, Any], Metrics]:
            key_batch, key_critic, key_actor = jax.random.split(jax.random.fold_in(key, i), 3)
            agent, replay = carry if changes else (carry[0], state.replay)
            samples = replay.sample(key_batch, (self.actor_interval, self.batch_size))
            if self.replay.sequences:
                samples = replace(samples, rows=replace(samples.rows, n_step=self.n_step))
            keys = jax.random.split(key_critic, self.actor_interval)
            agent, critic_metrics = jax.lax.scan(update_critic, agent, (samples, keys))
            replay, critic_metrics = told(replay, samples.index, critic_metrics)
            metrics = tree.mean(critic_metrics)
            if isinstance(self.agent, ActorCritic):
                last = tree.index(samples.rows, -1)
                agent, actor_metrics = descend_actor(self.agent, agent, last, key_actor, hyperparams)
                metrics |= actor_metrics
            return (self.agent.update_targets(agent, hyperparams), replay if changes else ()), metrics

        (agent, replay), metrics, _ = repeat(rounds, learn_once, (state.agent, state.replay if changes else ()))
        metrics |= {"gradient_steps": rounds * self.actor_interval}
        there = tree.among_copies(there)
        state = replace(state, agent=tree.where(there, agent, state.agent), replay=replay if changes else state.replay)
        return state, tree.where(there, metrics, tree.zeros(metrics))

    def policy(self, state: OffPolicyState, explores: bool = False) -> SlotPolicy:
        """How the agent acts in one environment, greedily or exploring."""
        return self.behaviour(state).policy(state.agent.actor.params, explores)

    def inherit(self, state: OffPolicyState, parent: OffPolicyState) -> OffPolicyState:
        """state with the agent and the hyperparameters of parent; it keeps its replay and environments.

        Environments that hold NaN, or whose last transitions do, are the parent's too.
        """
        state = replace(state, agent=parent.agent, hyperparams=parent.hyperparams)
        if not self.window:
            return replace(state, slots=revived(state.slots, parent.slots))
        rows, theirs = state.window.rows, parent.window.rows
        slots, rows = revived((state.slots, rows), (parent.slots, theirs), (0, 1))
        return replace(state, slots=slots, window=replace(state.window, rows=rows))
