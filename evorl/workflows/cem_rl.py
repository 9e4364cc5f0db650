"""CEM-RL: an evolution strategy over actors, some of which learn by gradient."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import tree
from evorl.ec import search
from evorl.ec.shaping import count_elites
from evorl.errors import require
from evorl.parts import bind, part, resolve_numbers
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
from evorl.vector_env import UNLIMITED, Rollout, RolloutPlan, VectorEnv
from evorl.workflows import shared_replay_learning


@struct.dataclass
class CEMRLState:
    numbers: Numbers
    env_params: PyTree
    agent: State  # its critic is shared by all learners; its actor is the center of the distribution
    evolver: State
    replay: ReplayBuffer
    generation: Int[Array, ""]  # not counting the random iteration
    generation_env_steps: Int[Array, ""]  # of the last generation
    env_steps: Float[Array, ""]  # total so far


@struct.dataclass
class GenerationCarry:
    """Values that `plan` computes before the rollout of a generation and that `learn_from` needs."""

    agent: State
    evolver: State
    learner_indices: Int[Array, " m"]  # individuals that have learned
    metrics: Metrics


@part
class CEMRL(shared_replay_learning.BaseHybrid):
    """CEM-RL: in each generation, a part of the population takes gradient steps, then all are evaluated.

    The evolver gets the fitness of all individuals. The individuals that learn are trained at the same
    time (Flajolet et al. 2022, arXiv:2206.08888). They share one critic, whose loss is the mean over the
    learners: each has its own batch and its own target actor. They also share everything else that an agent
    learns, such as the temperature of SAC, which moves by their mean.

    The critic takes as many gradient steps as the last generation took env steps, but at least min_updates
    and at most max_updates. In the first iteration, all actions are random; the next warmup_generations
    iterations are evolution alone.

    Args:
        env: Environment.
        agent: Off-policy agent with an actor and a critic, such as TD3.
        evolver: Evolver whose individuals are the parameters of actors.
        learners: Fraction of the population that learns; the learners are drawn again in each generation.
        min_updates: Minimum number of gradient steps per generation.
        max_updates: Maximum number of gradient steps per generation.
        batch_size: Number of transitions in the batch of each learner.
        capacity: Maximum number of transitions in the replay buffer.
        replay: Factory of the replay buffer.
        random_steps: Number of env steps with random actions, in the first iteration; 0 for none.
        warmup_generations: Number of initial generations without gradient steps.
        fitness_episodes: Number of episodes of each individual whose mean return is its fitness.
        explore: Whether individuals act with exploration noise in these episodes.
        eval_episodes: Number of episodes of an evaluation.
        scan_length: Number of steps after which transitions are stored and the end of the rollout is tested.

    Source: Pourchot & Sigaud 2019, arXiv:1810.01222, algorithm 1.
    """

    env: Env
    agent: ActorCritic
    evolver: Evolver
    learners: float = 0.5
    min_updates: int = 64
    max_updates: int = 1024
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: ReplayFactory = UNIFORM
    random_steps: int = 25_600
    warmup_generations: int = 0
    fitness_episodes: int = 1
    explore: bool = False
    eval_episodes: int = 10
    scan_length: int = 20

    def __post_init__(self) -> None:
        shared_replay_learning.check_hybrid(self)
        n = self.evolver.population_size
        learners = f"must be a fraction of the population that gives 1 to {n} members of {n}"
        require(1 <= self.num_learners <= n, "learners", self.learners, learners)

    @property
    def unused_numbers(self) -> dict[str, str]:
        """Return the names of hyperparameters that have no effect, each with the reason."""
        return {} if self.explore else {"agent.exploration_noise": "explore=false"}

    @property
    def num_learners(self) -> int:
        """Return the number of individuals that learn by gradient."""
        return round(self.learners * self.evolver.population_size)

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments in which the individuals are evaluated."""
        n, starts = self.evolver.population_size, self.fitness_episodes
        sizes = {"num_envs": n, "num_actors": n, "eval_episodes": self.eval_episodes}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=self.scan_length, num_rollout_starts=starts)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        The first iteration takes random_steps instead.
        """
        episodes = self.evolver.population_size * self.fitness_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    @property
    def prefill_steps(self) -> int:
        """Return the number of random steps of each environment in the first iteration; 0 if there are none."""
        return -(-self.random_steps // self.vector_env.num_envs)

    @property
    def initial_env_steps(self) -> int:
        """Return the maximum number of env steps of the first iteration."""
        return self.vector_env.num_envs * self.prefill_steps or self.iteration_cost["env_steps"][1]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> CEMRLState:
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        parts = shared_replay_learning.init_agent_evolver_replay(bind(self, numbers), key, env_params)
        return CEMRLState(numbers, env_params, *parts, jnp.int32(0), jnp.int32(0), jnp.float32(0))

    def plan(self, state: CEMRLState, key: Key) -> tuple[RolloutPlan, GenerationCarry]:
        """Train some of the individuals that the evolver asks for and plan all episodes, or plan random steps."""
        key_ask, key_pick, key_learn = jax.random.split(key, 3)
        n, m = self.evolver.population_size, self.num_learners
        random = (state.replay.size == 0) & (self.random_steps > 0)

        members, _, evolver = search.ask(self.evolver, key_ask, state.evolver)
        picked = jnp.argsort(jax.random.uniform(key_pick, (n,)))[:m]
        learning = ~random & (state.generation >= self.warmup_generations) & (state.replay.size > 0)
        updates = jnp.where(learning, jnp.clip(state.generation_env_steps, self.min_updates, self.max_updates), 0)
        before = tree.index(members, picked)
        agent, learned, metrics = self.train_learners(state, before, key_learn, updates)
        learned = tree.replace_nonfinite_rows(learned, before)  # some evolvers average individuals
        members = jax.tree.map(lambda x, new: x.at[picked].set(new), members, learned)
        plan = RolloutPlan(
            self.vector_env.make_starts(every=random),
            episodes=jnp.where(random, UNLIMITED, self.fitness_episodes),
            steps=jnp.where(random, self.prefill_steps, UNLIMITED),
            params=members,
            explores=True if self.explore else None,
            random_actions=random,
            stores=True,
        )
        metrics |= {"gradient_steps": updates}
        return plan, GenerationCarry(agent, evolver, picked, metrics)

    def plan_evaluation(self, state: CEMRLState, key: Key) -> RolloutPlan:
        """Plan greedy episodes of the center of the distribution."""
        del key
        center = tree.broadcast(self.evolver.solution(state.evolver), self.evolver.population_size)
        return self.vector_env.plan_evaluation(center, False if self.explore else None, random=False, stores=False)

    def learn_from(
        self, state: CEMRLState, carry: GenerationCarry, played: Rollout, key: Key
    ) -> tuple[CEMRLState, Metrics]:
        members, random, means = played.plan.params, jnp.asarray(played.plan.random_actions), played.stats.fitness_means
        evolver, metrics = search.tell_means(self.evolver, key, members, means, carry.evolver, state.evolver)
        evolver = tree.select(~random, evolver, state.evolver)
        learned = carry.metrics["gradient_steps"] > 0
        metrics |= played.metrics() | carry.metrics
        metrics |= {
            "return_best": jnp.nanmax(played.stats.known_returns),
            "gradient_elites": jnp.where(learned, count_elites(means["return"], carry.learner_indices), 0),
        }
        state = replace(
            state,
            agent=replace(carry.agent, actor=carry.agent.actor.reset_with_params(self.evolver.solution(evolver))),
            evolver=evolver,
            generation=state.generation + ~random,
            generation_env_steps=jnp.where(random, state.generation_env_steps, played.stats.steps.sum()),
            env_steps=state.env_steps + played.stats.steps.sum(),
        )
        return state, metrics

    def train_learners(
        self, state: CEMRLState, chosen: Params, key: Key, updates: Int[Array, ""]
    ) -> tuple[Any, Params, Metrics]:
        """Train individuals and the critic that they share, with fresh optimizers of the actors.

        Args:
            state: State of the workflow.
            chosen: Parameters of the individuals, leaves [m, ...].
            key: Random key.
            updates: Number of gradient steps, [].

        Returns:
            The state of the agent, whose actor has leaves [m, ...], the parameters of the individuals, and
            the metrics.
        """
        learners = replace(state.agent, actor=jax.vmap(state.agent.actor.reset_with_params)(chosen))
        learners, _, metrics = shared_replay_learning.update_actors_and_critic(
            self, learners, state.replay, key, updates
        )
        return learners, learners.actor.params, metrics

    def policy(self, state: CEMRLState, explores: bool = False) -> PolicyFn:
        """Return the policy of the center of the distribution."""
        return self.behaviour(state).bind_params(state.agent.actor.params, explores)
