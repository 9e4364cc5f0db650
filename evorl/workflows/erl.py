"""ERL: agents that learn by gradient beside a population that evolves, around one replay."""

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.agents.td3 import TD3
from evorl.agents.train_state import TrainState
from evorl.ec import search
from evorl.ec.genetic import GA
from evorl.ec.shaping import argsort_best_first, count_elites, sanitize_fitness
from evorl.ec.variation import ERLMutation
from evorl.errors import require, unknown_name_error
from evorl.parts import Number, bind, number, part, resolve_numbers
from evorl.replay.ring import UNIFORM
from evorl.tree import as_arrays
from evorl.types import (
    ActorCritic,
    Env,
    Evolver,
    Key,
    Metrics,
    Numbers,
    Params,
    PolicyFn,
    ReplayBuffer,
    ReplayFactory,
    State,
)
from evorl.vector_env import UNLIMITED, Behaviour, Rollout, RolloutPlan, VectorEnv, split_evenly
from evorl.workflows import shared_replay_learning
from evorl.workflows.base import check_positive

UPDATES_FOLLOW_OPTIONS = ("iteration", "all")


def make_default_ga() -> GA:
    """Return the evolver of Khadka & Tumer 2018, whose code mutates a child with probability 0.9."""
    return GA(10, num_elites=2, mutation=ERLMutation(), mutation_rate=0.9)


@struct.dataclass
class ERLState:
    numbers: Numbers
    env_params: PyTree
    agent: State  # its actor leads with [num_agents], what else it holds they share
    evolver: State
    replay: ReplayBuffer
    generation: Int[Array, ""]  # without the one that acted at random
    env_steps: Float[Array, ""]  # so far


@part
class ERL(shared_replay_learning.BaseHybrid):
    """A population evolves and agents learn by gradient from what all of them did (Khadka & Tumer 2018).

    Source: arXiv:1805.07917, algorithm 1. Members play fitness_episodes greedily unless explore, agents play
    agent_episodes with exploration noise. Every injection_interval generations the agents take part in place of the
    members asked last. The agents, which share a critic as CEM-RL's learners do, then take as many gradient steps as
    this iteration took env steps, or as all have taken so far, as updates_follow says, within min_updates and
    max_updates. With elite_pull an agent first moves to the fittest member where that is fitter (Supe-RL; Marchesini et
    al. 2021). The first iteration acts at random for random_steps, where there are any; the next warmup_generations are
    evolution alone.
    """

    env: Env
    agent: ActorCritic = field(default_factory=TD3)
    evolver: Evolver = field(default_factory=make_default_ga)
    num_agents: int = 1
    agent_episodes: int = 1
    injection_interval: int = 1
    updates_follow: str = "iteration"  # or "all"
    min_updates: int = 64
    max_updates: int = 1024
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: ReplayFactory = UNIFORM
    random_steps: int = 0
    warmup_generations: int = 0
    fitness_episodes: int = 1
    explore: bool = False  # exploration noise in the episodes that count as fitness
    eval_episodes: int = 10  # of the center, and as many of the agents
    chunk: int = 20
    elite_pull: Number = number(0.0, 0, 1, "fraction by which an agent moves to a fitter best member; 0 is ERL")

    def __post_init__(self) -> None:
        shared_replay_learning.check_hybrid(self)
        check_positive(self, "num_agents", "agent_episodes", "injection_interval")
        n = self.evolver.population_size
        require(self.num_agents < n, "num_agents", self.num_agents, f"must be below population_size, {n}")
        if self.updates_follow not in UPDATES_FOLLOW_OPTIONS:
            raise unknown_name_error("updates_follow", self.updates_follow, UPDATES_FOLLOW_OPTIONS)

    @property
    def num_envs(self) -> int:
        """One for each member and each agent."""
        return self.evolver.population_size + self.num_agents

    @property
    def num_agent_envs(self) -> int:
        """In an evaluation, where the center has the others."""
        return self.num_envs // 2

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which members and agents play."""
        starts, most = max(self.fitness_episodes, self.agent_episodes), -(-self.eval_episodes // self.num_agent_envs)
        n = self.num_envs
        return VectorEnv(self.env, self.agent, n, n, starts, most * n, self.chunk)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes, beside the one at random and those of evolution alone."""
        episodes = self.evolver.population_size * self.fitness_episodes + self.num_agents * self.agent_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    @property
    def prefill_steps(self) -> int:
        """Steps of each environment at random, which the first iteration takes; 0 where there are none."""
        return -(-self.random_steps // self.num_envs)

    @property
    def initial_env_steps(self) -> int:
        """The most env steps that the first iteration takes."""
        return self.num_envs * self.prefill_steps or self.iteration_cost["env_steps"][1]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> ERLState:
        key_agents, key_evolver = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        env_params = as_arrays(self.env.default_params if env_params is None else env_params)
        keys = jax.random.split(key_agents, self.num_agents)
        bound = bind(self, numbers)
        agents = jax.vmap(bound.agent.init)(keys)
        first = tree.index(agents, 0)
        draw = lambda key: bound.agent.init(key).actor.params  # noqa: E731
        evolver = search.init_evolver_state(bound.evolver, key_evolver, first.actor.params, draw)
        _, row = bound.vector_env.init_blank_envs(first.actor.params, env_params)
        replay, agent = self.replay.empty(self.capacity, row, self.num_envs), replace(first, actor=agents.actor)
        return ERLState(numbers, env_params, agent, evolver, replay, jnp.int32(0), jnp.float32(0))

    def is_learning(self, state: ERLState, random: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether the agents play and learn in this generation."""
        return ~random & (state.generation >= self.warmup_generations)

    def is_injecting(self, state: ERLState, random: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether the agents take part in this generation in place of the members asked last."""
        return self.is_learning(state, random) & ((state.generation + 1) % self.injection_interval == 0)

    def plan(self, state: ERLState, key: Key) -> tuple[RolloutPlan, State]:
        """Episodes of what the evolver asks for, greedily, and of the agents; or the steps at random."""
        n, m = self.evolver.population_size, self.num_agents
        random = (state.replay.size == 0) & (self.random_steps > 0)
        members, _, evolver = search.ask(self.evolver, key, state.evolver)
        agents = state.agent.actor.params
        injected = jax.tree.map(lambda x, own: x.at[n - m :].set(own), members, agents)
        members = tree.select(self.is_injecting(state, random), injected, members)
        is_agent = jnp.arange(self.num_envs) >= n
        episodes = jnp.where(self.is_learning(state, random), self.agent_episodes, 0)
        plan = RolloutPlan(
            self.vector_env.make_starts(every=random),
            episodes=jnp.where(random, UNLIMITED, jnp.where(is_agent, episodes, self.fitness_episodes)),
            steps=jnp.where(random, self.prefill_steps, UNLIMITED),
            params=jax.tree.map(lambda *x: jnp.concatenate(x), members, agents),
            explores=self.explore | is_agent,
            random_actions=random,
            stores=True,
        )
        return plan, evolver

    def plan_evaluation(self, state: ERLState, key: Key) -> RolloutPlan:
        """Whole episodes of the center, and as many of the agents in turn, greedily."""
        del key
        k, episodes = self.num_agent_envs, self.eval_episodes
        center = tree.broadcast(self.evolver.solution(state.evolver), self.num_envs - k)
        in_turn = tree.index(state.agent.actor.params, jnp.arange(k) % self.num_agents)
        params = jax.tree.map(lambda *x: jnp.concatenate(x), center, in_turn)
        plan = self.vector_env.plan_evaluation(params, explores=False, random=False, stores=False)
        return replace(
            plan, episodes=jnp.concatenate([split_evenly(episodes, self.num_envs - k), split_evenly(episodes, k)])
        )

    def learn_from(self, state: ERLState, carry: State, played: Rollout, key: Key) -> tuple[ERLState, Metrics]:
        key_learn, key_tell = jax.random.split(key)
        stats, random, n, m = (
            played.stats,
            jnp.asarray(played.plan.random_actions),
            self.evolver.population_size,
            self.num_agents,
        )
        members = tree.index(played.plan.params, slice(n))
        means = stats.fitness_means
        fitness, returns = means["return"][:n], means["return"][n:]
        learning = self.is_learning(state, random)
        env_steps = state.env_steps + stats.steps.sum()
        so_far = jnp.minimum(env_steps, self.max_updates).astype(jnp.int32)
        follows = so_far if self.updates_follow == "all" else stats.steps.sum()
        learns = learning & (state.replay.size > 0)
        updates = jnp.where(learns, jnp.clip(follows, self.min_updates, self.max_updates), 0)
        agent = replace(state.agent, actor=self.pull_to_elite(state, members, fitness, returns, learning))
        agent, replay, metrics = shared_replay_learning.update_actors_and_critic(
            self, agent, state.replay, key_learn, updates
        )
        evolver = search.merge_asked_state(carry, state.evolver)
        judged = self.evolver.compute_fitness(tree.index(means, slice(n)))
        told, told_metrics = search.tell(self.evolver, key_tell, members, judged, evolver)
        metrics |= played.metrics() | told_metrics
        metrics |= {
            "return_best": stats.mean_return[:n].max(),
            "return_agent": tree.index(stats, slice(n, None)).metrics()["return"],
            "gradient_steps": updates,
            "gradient_elites": jnp.where(
                self.is_injecting(state, random), count_elites(fitness, jnp.arange(n - m, n)), 0
            ),
        }
        learned = {"agent": agent, "replay": replay, "evolver": tree.select(~random, told, state.evolver)}
        return replace(state, generation=state.generation + ~random, env_steps=env_steps, **learned), metrics

    def evaluation_metrics(self, state: ERLState, played: Rollout) -> Metrics:
        """The metrics of the center, and the return of the agents."""
        del state
        parts = slice(-self.num_agent_envs), slice(-self.num_agent_envs, None)
        center, agents = (tree.index(played.stats, part) for part in parts)
        return center.evaluation_metrics() | {"return_agent": agents.metrics()["return"]}

    def pull_to_elite(
        self, state: ERLState, members: Params, fitness: Float[Array, " n"], returns: Array, learning: Bool[Array, ""]
    ) -> TrainState:
        """The agents' actors, those with a lower return than the fittest member moved to it by elite_pull."""
        actor, best = state.agent.actor, argsort_best_first(fitness)[0]
        moved = jax.tree.map(lambda own, x: own + self.elite_pull * (x[best] - own), actor.params, members)
        return replace(
            actor, params=tree.select(learning & (fitness[best] > sanitize_fitness(returns)), moved, actor.params)
        )

    def behaviour(self, state: ERLState) -> Behaviour:
        """How the agent acts in one environment."""
        return Behaviour(self.env, self.agent)

    def policy(self, state: ERLState, explores: bool = False) -> PolicyFn:
        """How the evolver's center acts in one environment, greedily or exploring."""
        return self.behaviour(state).bind_params(self.evolver.solution(state.evolver), explores)
