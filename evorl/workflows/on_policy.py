"""One agent that learns from what it has just collected: the loop of PPO, A2C and IMPALA."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import hyperparameters, mesh, tree
from evorl.agents.memory import remembers
from evorl.errors import OptionError, require, require_whole, unknown
from evorl.hyperparameters import as_state
from evorl.normalize import Statistics
from evorl.types import (
    Batch,
    Disagrees,
    Discounted,
    Env,
    Hyperparams,
    Key,
    Metrics,
    OnPolicyAgent,
    Reestimates,
    SlotPolicy,
    Transition,
)
from evorl.vector_env import UNLIMITED, Behaviour, Plan, Played, Store, VectorEnv
from evorl.workflows import base, segments
from evorl.workflows.base import check_positive, revived
from evorl.workflows.passes import NEVER, REFRESH, Passes
from evorl.workflows.sampling import SHUFFLED, Sampling
from evorl.workflows.trajectories import Trajectories


@struct.dataclass
class OnPolicyState:
    hyperparams: Any
    env_params: Any
    agent: Any
    slots: Any  # leaves [num_envs, ...]
    older: Any  # params of the actor before each of the last `staleness` iterations, leaves [staleness, ...]
    statistics: Any  # of observations, where they are normalized
    rewards: Any  # statistics of their sizes, where values are normalized
    iteration: Any  # [] int32


@dataclass(frozen=True)
class OnPolicy:
    """An iteration is num_steps steps of num_envs environments, then num_epochs passes over them.

    A pass takes a gradient step on every batch_size of them, in random order. Observations are normalized by the
    statistics of those before this iteration, so that acting and learning see the same; values are learned in units of
    `value_scale`, by the rewards so far. The policy that acts is that of `staleness` iterations ago, as where actors
    and learner work at the same time. Minibatches are what the sampling draws. Advantages are estimated once or, as
    `refresh` says, before each "epoch" or "minibatch", by what the network gave when it last learned from a step.
    """

    env: Env
    agent: OnPolicyAgent
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

    def __post_init__(self) -> None:
        if self.num_steps == 0:
            object.__setattr__(self, "num_steps", self.env.max_episode_steps)
        if self.batch_size == 0:
            object.__setattr__(self, "batch_size", self.num_rows)
        check_positive(self, "num_envs", "num_steps", "num_epochs", "batch_size", "eval_episodes")
        require_whole("staleness", self.staleness, 0)
        divides = self.num_rows % self.batch_size == 0
        require(divides, "batch_size", self.batch_size, f"must divide num_envs * num_steps, {self.num_rows}")
        given, steps = self.sampling.length, self.num_steps
        require(steps % (given or steps) == 0, "sampling.length", given, f"must divide num_steps, {steps}")
        whole = self.batch_size % self.segment == 0
        require(whole, "batch_size", self.batch_size, f"must be a multiple of the steps of a segment, {self.segment}")
        if self.refresh not in REFRESH:
            raise unknown("refresh", self.refresh, REFRESH)
        several = isinstance(self.agent, Disagrees) and self.agent.num_values > 1
        if self.refresh != NEVER and (several or not isinstance(self.agent, Reestimates)):
            raise OptionError(f"refresh={self.refresh}: needs an agent with targets (types.Reestimates) and one value")

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.of(self.agent)

    @property
    def num_rows(self) -> int:
        """Transitions of a rollout."""
        return self.num_envs * self.num_steps

    @property
    def segment(self) -> int:
        """Steps of a segment."""
        return self.sampling.length or (self.num_steps if remembers(self.agent) else 1)

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which it collects and evaluates."""
        starts = min(4, self.num_steps)  # of four times num_envs starts a rollout may use some twice
        return VectorEnv(self.env, self.agent, self.num_envs, 1, starts, self.eval_episodes, self.num_steps)

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent."""
        return self.vector_env.parallel

    def axes(self, state: OnPolicyState) -> OnPolicyState:
        return OnPolicyState("", "", "", mesh.SLOTS, "", "", "", "")

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes."""
        updates = self.num_rows // self.batch_size
        return {"env_steps": (self.num_rows, self.num_rows), "gradient_steps": (updates, updates * self.num_epochs)}

    def init(self, key: Key, hyperparams: Hyperparams, env_params: Any = None) -> OnPolicyState:
        hyperparams = as_state(hyperparams)
        self.sampling.check(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        agent = self.agent.init(key, hyperparams)
        slots, row = self.vector_env.blank(agent.actor.params, hyperparams, env_params)
        older = tree.broadcast(agent.actor.params, self.staleness) if self.staleness else ()
        statistics = Statistics.empty(row.obs) if self.normalize_observations else ()
        rewards = Statistics.empty(row.reward) if self.normalize_values else ()
        return OnPolicyState(hyperparams, env_params, agent, slots, older, statistics, rewards, jnp.int32(0))

    def step(self, state: OnPolicyState, key: Key) -> tuple[OnPolicyState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: OnPolicyState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def plan(self, state: OnPolicyState, key: Key) -> tuple[Plan, tuple[()]]:
        """num_steps steps of every environment, exploring."""
        del key
        params = tree.index(state.older, 0) if self.staleness else state.agent.actor.params
        plan = Plan(
            self.vector_env.starts(),
            restart=state.iteration == 0,
            episodes=UNLIMITED,
            steps=self.num_steps,
            params=tree.broadcast(params, 1),
            explores=True,
        )
        return plan, ()

    def exam(self, state: OnPolicyState, key: Key) -> Plan:
        """Whole episodes, greedily."""
        del key
        return self.vector_env.exam(tree.broadcast(state.agent.actor.params, 1), explores=False)

    def play(self, state: OnPolicyState, plan: Plan, key: Key) -> tuple[OnPolicyState, Played]:
        """What was played, and stored as transitions, leaves [num_steps, num_envs, ...]: those of its last steps.

        Where slots on the host are not all waited for, each slot's own follow one another, as many as there are.
        """
        behaviour = self.behaviour(state)
        shapes = self.vector_env.blank(state.agent.actor.params, state.hyperparams, state.env_params)[1]
        if self.vector_env.world(state.env_params).batch:
            apart = Trajectories.empty(shapes, self.num_steps, self.num_envs)
            store = Store(-(-self.num_steps // 8), apart, Trajectories.add)
            played = self.vector_env.play(behaviour, state.env_params, plan, state.slots, key, store)
            return state, replace(played, stored=played.stored.rollout)
        shapes = replace(shapes, weight=jax.ShapeDtypeStruct((), jnp.float32))
        nothing = tree.broadcast(tree.zeros(shapes), self.num_steps, self.num_envs)

        def whole(_: Any, transitions: Transition, mask: Array) -> Transition:
            return segments.weighed(transitions, mask)

        store = Store(self.num_steps, nothing, whole)  # one chunk is the rollout
        return state, self.vector_env.play(behaviour, state.env_params, plan, state.slots, key, store)

    def absorb(self, state: OnPolicyState, carry: tuple[()], played: Played, key: Key) -> tuple[OnPolicyState, Metrics]:
        del carry
        state, metrics = self.learn(replace(state, slots=played.slots), played.stored, key)
        return state, played.metrics() | metrics

    def report(self, state: OnPolicyState, played: Played) -> Metrics:
        del state
        return played.stats.evaluation()

    def collect(self, state: OnPolicyState, key: Key) -> tuple[OnPolicyState, Transition, Metrics]:
        """Acts, and gives what it saw, leaves [num_steps, num_envs, ...]."""
        state, played = self.play(state, self.plan(state, key)[0], key)
        return replace(state, slots=played.slots), played.stored, played.metrics()

    @jax.named_scope("learning")
    def learn(self, state: OnPolicyState, rollout: Transition, key: Key) -> tuple[OnPolicyState, Metrics]:
        """num_epochs passes over a rollout, leaves [num_steps, num_envs, ...]."""
        state, batch = self.assess(state, rollout)
        return self.improve(state, rollout, batch, key, jnp.int32(self.num_epochs))

    def assess(self, state: OnPolicyState, rollout: Transition) -> tuple[OnPolicyState, Batch]:
        """The state that knows a rollout's rewards, and what is learned from it, leaves [num_steps, num_envs, ...].

        Advantages are in units of rewards, values in those of `value_scale`.
        """
        if self.normalize_values:
            sizes = jax.tree.map(jnp.abs, tree.merge_axes(rollout.reward))
            rewards = state.rewards.update(sizes, segments.rows_there(rollout))
            state = replace(state, rewards=rewards)
        batch = self.batch(state, replace(rollout, weight=()))
        return state, batch if self.refresh != NEVER else replace(batch, ratio=(), beyond=())

    def improve(
        self, state: OnPolicyState, rollout: Transition, batch: Batch, key: Key, num_epochs: Int[Array, ""]
    ) -> tuple[OnPolicyState, Metrics]:
        """So many passes over what is learned from a rollout; its observations count from then on."""
        there = None
        if not isinstance(rollout.weight, tuple):
            there, some = segments.there(rollout.weight, self.segment)
            num_epochs = jnp.where(some, num_epochs, 0)
        agent, metrics, done = self.passes(state, rollout, batch).over(
            state.agent, self.segments(batch), key, num_epochs, there
        )
        older, statistics = state.older, state.statistics
        if self.staleness:
            older = tree.pushed(older, state.agent.actor.params)
        if self.normalize_observations:
            statistics = statistics.update(tree.merge_axes(rollout.obs), segments.rows_there(rollout))
        state = replace(state, agent=agent, older=older, statistics=statistics, iteration=state.iteration + 1)
        return state, metrics | {"gradient_steps": done * (self.num_rows // self.batch_size)}

    def passes(self, state: OnPolicyState, rollout: Transition, batch: Batch) -> Passes:
        """How a rollout is learned from, with advantages that follow from other values and ratios where refreshed."""

        def estimated(value: Array, ratio: Array) -> tuple[Array, Array]:
            agent: Any = self.agent
            t, scale = self.scaled(state, rollout)
            value, ratio = (segments.joined(x, self.num_envs) for x in (value, ratio))
            advantage, target = agent.targets(t, ratio, value, batch.beyond, self.now(state))
            return segments.cut((advantage * scale, target), self.segment)

        size, normalized = self.batch_size // self.segment, self.normalize_advantages
        return Passes(self.agent, self.now(state), self.sampling, size, normalized, self.refresh, estimated)

    def batch(self, state: OnPolicyState, rollout: Transition) -> Batch:
        """What the agent learns from a rollout, leaves [num_steps, num_envs, ...]."""
        obs, next_obs = self.normalized(state, rollout.obs), self.normalized(state, rollout.next_obs)
        t, scale = self.scaled(state, replace(rollout, obs=obs, next_obs=next_obs))
        fresh = self.staleness == 0 and not self.vector_env.world(state.env_params).batch  # where some acted before
        batch = self.agent.batch(state.agent.actor.params, t, self.now(state), fresh=fresh)
        return replace(batch, advantage=jax.tree.map(jnp.multiply, batch.advantage, scale))

    def scaled(self, state: OnPolicyState, rollout: Transition) -> tuple[Transition, Any]:
        """A rollout with rewards in units of what values are, and that unit, of a game that of each group."""
        scale = self.value_scale(state)
        if not self.normalize_values:
            scale = jax.tree.map(lambda _: scale, rollout.reward)
        return replace(rollout, reward=jax.tree.map(jnp.divide, rollout.reward, scale)), scale

    def segments(self, batch: Batch) -> Batch:
        """A batch, leaves [num_steps, num_envs, ...], in segments [n, steps, ...] with the memory before each."""
        memory = tree.merge_axes(tree.index(batch.memory, slice(None, None, self.segment)))
        return replace(segments.cut(replace(batch, memory=()), self.segment), memory=memory)

    def value_scale(self, state: OnPolicyState) -> Any:
        """What the network's values are multiplied by to be sums of rewards, so that it learns numbers around 1, [].

        The mean size of rewards so far times the steps that count: 1 / (1 - discount), or an episode's if fewer. Of a
        game each group has its own, for all of its members.
        """
        if not self.normalize_values:
            return 1.0
        now, horizon = self.now(state), float(self.env.max_episode_steps)
        if isinstance(now, Discounted):
            horizon = jnp.minimum(1 / (1 - now.discount), horizon)
        sizes = jax.tree.map(jnp.mean, state.rewards.mean)
        return jax.tree.map(lambda size: jnp.where(size > 0, size, 1.0) * horizon, sizes)

    def now(self, state: OnPolicyState) -> Hyperparams:
        """The hyperparameters as they are by this iteration."""
        return hyperparameters.at(state.hyperparams, state.iteration.astype(jnp.float32) * self.num_rows)

    def normalized(self, state: OnPolicyState, obs: Any) -> Any:
        """An observation as the policy sees it."""
        return state.statistics.normalize(obs) if self.normalize_observations else obs

    def behaviour(self, state: OnPolicyState) -> Behaviour:
        """How the agent acts in one environment."""
        return Behaviour(self.env, self.agent, self.now(state), partial(self.normalized, state))

    def policy(self, state: OnPolicyState, explores: bool = False) -> SlotPolicy:
        """How the agent acts in one environment, greedily or exploring."""
        return self.behaviour(state).policy(state.agent.actor.params, explores)

    def inherit(self, state: OnPolicyState, parent: OnPolicyState) -> OnPolicyState:
        """state with the agent, what its policy needs and the hyperparameters of parent; its environments stay.

        Those that hold NaN are the parent's too.
        """
        taken = {"agent": parent.agent, "older": parent.older}
        taken |= {"statistics": parent.statistics, "rewards": parent.rewards}
        slots = revived(state.slots, parent.slots)
        return replace(state, hyperparams=parent.hyperparams, slots=slots, **taken)
