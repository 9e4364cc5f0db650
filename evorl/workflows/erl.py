"""ERL: a population that evolves and agents that learn by gradient, with one replay buffer."""

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
from evorl.metrics import MEASURED_STEPS
from evorl.parts import Number, bind, number, part, resolve_numbers
from evorl.replay.ring import UNIFORM
from evorl.tree import resolve_env_params
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
from evorl.vector_env import UNLIMITED, Rollout, RolloutPlan, VectorEnv, split_evenly
from evorl.workflows import shared_replay_learning
from evorl.workflows.base import check_positive

UPDATES_FOLLOW_OPTIONS = ("iteration", "all")


def make_default_ga() -> GA:
    """Return the genetic algorithm of Khadka & Tumer 2018, whose code mutates a child with probability 0.9."""
    return GA(10, num_elites=2, mutation=ERLMutation(), mutation_rate=0.9)


@struct.dataclass
class ERLState:
    numbers: Numbers
    env_params: PyTree
    agent: State  # the actor has leaves [num_agents, ...]; the agents share the rest
    evolver: State
    replay: ReplayBuffer
    generation: Int[Array, ""]  # not counting the random iteration
    env_steps: Float[Array, ""]  # total so far


@part
class ERL(shared_replay_learning.BaseHybrid):
    """Evolutionary reinforcement learning (ERL): a population evolves, and agents learn from its experience.

    In each iteration, individuals and agents act in the environment, and all transitions are added to one
    replay buffer. The agents act with exploration noise. Every injection_interval generations, they replace
    the individuals that the evolver asked for last. Then the agents take gradient steps; they share a critic,
    as the learners of CEMRL do.

    With elite_pull, an agent first moves towards the fittest individual if that one is fitter (Supe-RL;
    Marchesini et al. 2021). In the first iteration, all actions are random, if there are random_steps; the
    next warmup_generations iterations are evolution alone.

    Args:
        env: Environment.
        agent: Off-policy agent with an actor and a critic, such as TD3.
        evolver: Evolver whose individuals are the parameters of actors.
        num_agents: Number of agents that learn by gradient.
        agent_episodes: Number of episodes of each agent per generation.
        injection_interval: Number of generations from one injection of the agents into the population to the
            next.
        updates_follow: Number of gradient steps per generation: "iteration" for the env steps of this
            iteration, "all" for all env steps so far.
        min_updates: Minimum number of gradient steps per generation.
        max_updates: Maximum number of gradient steps per generation.
        batch_size: Number of transitions in the batch of each agent.
        capacity: Maximum number of transitions in the replay buffer.
        replay: Factory of the replay buffer.
        random_steps: Number of env steps with random actions, in the first iteration; 0 for none.
        warmup_generations: Number of initial generations without gradient steps.
        fitness_episodes: Number of episodes of each individual whose mean return is its fitness.
        explore: Whether individuals act with exploration noise in these episodes.
        eval_episodes: Number of evaluation episodes of the center of the evolver; the agents together play as
            many.
        scan_length: Number of steps after which transitions are stored and the end of the rollout is tested.

    Source: Khadka & Tumer 2018, arXiv:1805.07917, algorithm 1.
    """

    env: Env
    agent: ActorCritic = field(default_factory=TD3)
    evolver: Evolver = field(default_factory=make_default_ga)
    num_agents: int = 1
    agent_episodes: int = 1
    injection_interval: int = 1
    updates_follow: str = "iteration"
    min_updates: int = 64
    max_updates: int = 1024
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: ReplayFactory = UNIFORM
    random_steps: int = 0
    warmup_generations: int = 0
    fitness_episodes: int = 1
    explore: bool = False
    eval_episodes: int = 10
    scan_length: int = 20
    elite_pull: Number = number(
        0.0,
        0,
        1,
        "fraction by which an agent moves towards the fittest individual if that one is fitter; 0 for plain ERL",
    )

    def __post_init__(self) -> None:
        shared_replay_learning.check_hybrid(self)
        check_positive(self, "num_agents", "agent_episodes", "injection_interval")
        n = self.evolver.population_size
        require(self.num_agents < n, "num_agents", self.num_agents, f"must be below population_size, {n}")
        if self.updates_follow not in UPDATES_FOLLOW_OPTIONS:
            raise unknown_name_error("updates_follow", self.updates_follow, UPDATES_FOLLOW_OPTIONS)

    @property
    def num_envs(self) -> int:
        """Return the number of environments: one for each individual and each agent."""
        return self.evolver.population_size + self.num_agents

    @property
    def num_agent_envs(self) -> int:
        """Return the number of environments of the agents in an evaluation; the center uses the others."""
        return self.num_envs // 2

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments in which individuals and agents act."""
        starts, most = max(self.fitness_episodes, self.agent_episodes), -(-self.eval_episodes // self.num_agent_envs)
        n = self.num_envs
        sizes = {"num_envs": n, "num_actors": n, "eval_episodes": most * n}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=self.scan_length, num_rollout_starts=starts)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        They do not hold for the iteration with random steps and for iterations of evolution alone.
        """
        episodes = self.evolver.population_size * self.fitness_episodes + self.num_agents * self.agent_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    @property
    def prefill_steps(self) -> int:
        """Return the number of random steps of each environment in the first iteration; 0 if there are none."""
        return -(-self.random_steps // self.num_envs)

    @property
    def initial_env_steps(self) -> int:
        """Return the maximum number of env steps of the first iteration."""
        return self.num_envs * self.prefill_steps or self.iteration_cost["env_steps"][1]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> ERLState:
        key_agents, key_evolver = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
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
        """Return whether the agents act and learn in this generation, bool [].

        Args:
            state: State of the workflow.
            random: Whether this iteration takes random steps, [].
        """
        return ~random & (state.generation >= self.warmup_generations)

    def is_injecting(self, state: ERLState, random: Bool[Array, ""]) -> Bool[Array, ""]:
        """Return whether the agents replace the individuals that were asked for last in this generation, bool [].

        Args:
            state: State of the workflow.
            random: Whether this iteration takes random steps, [].
        """
        return self.is_learning(state, random) & ((state.generation + 1) % self.injection_interval == 0)

    def plan(self, state: ERLState, key: Key) -> tuple[RolloutPlan, State]:
        """Plan the episodes of the individuals, greedy unless `explore`, and of the agents; or plan random steps."""
        n, m = self.evolver.population_size, self.num_agents
        random = (state.replay.size == 0) & (self.random_steps > 0)
        members, _, evolver = search.ask(self.evolver, key, state.evolver)
        agents = state.agent.actor.params
        sound = tree.replace_nonfinite_rows(agents, tree.index(members, slice(n - m, None)))
        injected = jax.tree.map(lambda x, own: x.at[n - m :].set(own), members, sound)
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
        """Plan greedy episodes of the center of the evolver, and as many of the agents, which take turns."""
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
        stats, random = played.stats, jnp.asarray(played.plan.random_actions)
        n, m = self.evolver.population_size, self.num_agents
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
        evolver, evolver_metrics = search.tell_means(
            self.evolver, key_tell, members, tree.index(means, slice(n)), carry, state.evolver
        )
        metrics |= played.metrics() | evolver_metrics
        metrics |= {
            "return_best": jnp.nanmax(stats.known_returns[:n]),
            "return_agent": tree.index(stats, slice(n, None)).metrics()["return"],
            "gradient_steps": updates,
            "gradient_elites": jnp.where(
                self.is_injecting(state, random), count_elites(fitness, jnp.arange(n - m, n)), 0
            ),
        }
        learned = {"agent": agent, "replay": replay, "evolver": tree.select(~random, evolver, state.evolver)}
        return replace(state, generation=state.generation + ~random, env_steps=env_steps, **learned), metrics

    def evaluation_metrics(self, state: ERLState, played: Rollout) -> Metrics:
        """Return the metrics of the center, and the mean return of the agents as "return_agent"."""
        del state
        parts = slice(-self.num_agent_envs), slice(-self.num_agent_envs, None)
        center, agents = (tree.index(played.stats, part) for part in parts)
        reported = {"return_agent": agents.metrics()["return"], MEASURED_STEPS: agents.steps.sum()}
        return center.evaluation_metrics() | reported

    def pull_to_elite(
        self, state: ERLState, members: Params, fitness: Float[Array, " n"], returns: Array, learning: Bool[Array, ""]
    ) -> TrainState:
        """Move the agents whose return is below the highest fitness towards the fittest individual, by elite_pull.

        Args:
            state: State of the workflow.
            members: Parameters of the individuals, leaves [n, ...].
            fitness: Mean return of each individual, shape [n].
            returns: Mean return of each agent, shape [num_agents].
            learning: Whether the agents learn in this generation, []; otherwise none moves.

        Returns:
            The actors of the agents, leaves [num_agents, ...].
        """
        actor, best = state.agent.actor, argsort_best_first(fitness)[0]
        moved = jax.tree.map(lambda own, x: own + self.elite_pull * (x[best] - own), actor.params, members)
        return replace(
            actor, params=tree.select(learning & (fitness[best] > sanitize_fitness(returns)), moved, actor.params)
        )

    def policy(self, state: ERLState, explores: bool = False) -> PolicyFn:
        """Return the policy of the center of the evolver."""
        return self.behaviour(state).bind_params(self.evolver.solution(state.evolver), explores)
