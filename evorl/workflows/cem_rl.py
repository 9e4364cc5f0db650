"""CEM-RL: a distribution over actors, some of which learn by gradient."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import hyperparameters, tree
from evorl.agents.td3 import TD3Hyperparams
from evorl.ec import search
from evorl.ec.cem import CEMHyperparams
from evorl.ec.shaping import elites_among
from evorl.errors import require
from evorl.hyperparameters import as_state, default
from evorl.replay import UNIFORM
from evorl.types import ActorCritic, Env, Evolver, Key, Metrics, Params, Replays, SlotPolicy
from evorl.vector_env import UNLIMITED, Behaviour, Plan, Played, VectorEnv
from evorl.workflows import actors, base


@struct.dataclass
class CEMRLHyperparams:
    """The hyperparameters of the agent and of the evolver."""

    agent: Any = default(TD3Hyperparams)
    evolver: Any = default(CEMHyperparams)


@struct.dataclass
class CEMRLState:
    hyperparams: CEMRLHyperparams
    env_params: Any
    agent: Any  # its critic is shared by all learners; its actor is the center of the distribution
    evolver: Any
    replay: Any  # a Replay
    generation: Any  # [] int32, without the one that acted at random
    collected: Any  # [] int32, env steps of the last generation
    env_steps: Any  # [] float32, so far


@struct.dataclass
class Asked:
    """What a generation has asked for and learned before it plays."""

    agent: Any
    evolver: Any
    picked: Any  # [m] int32, the members that have learned
    metrics: Any


@dataclass(frozen=True)
class CEMRL:
    """Each generation part of the population learns, all are evaluated, the evolver is told (Pourchot & Sigaud 2019).

    Source: arXiv:1810.01222, algorithm 1, with the learners side by side (Flajolet et al. 2022, arXiv:2206.08888):
    they share one critic, whose loss is the mean over the learners' own batches, each with its own target actor. What
    else an agent learns, such as SAC's temperature, they share too; it moves by their mean.
    The critic takes as many gradient steps as the last generation took env steps, within min_updates and max_updates.
    The first iteration acts at random for random_steps; the next warmup_generations are evolution alone.
    """

    env: Env
    agent: ActorCritic
    evolver: Evolver
    learners: float = 0.5  # the part of the population that learns, drawn anew in each generation
    min_updates: int = 64
    max_updates: int = 1024
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: Replays = UNIFORM
    random_steps: int = 25_600
    warmup_generations: int = 0
    fitness_episodes: int = 1
    explore: bool = False  # exploration noise in the episodes that count as fitness
    eval_episodes: int = 10
    chunk: int = 20

    def __post_init__(self) -> None:
        actors.check(self)
        n = self.evolver.population_size
        learners = f"must be a part of the population that is 1 to {n} members of {n}"
        require(1 <= self.num_learners <= n, "learners", self.learners, learners)

    def hyperparams(self) -> CEMRLHyperparams:
        return CEMRLHyperparams(hyperparameters.of(self.agent), hyperparameters.of(self.evolver))

    @property
    def num_learners(self) -> int:
        """Members that learn by gradient."""
        return round(self.learners * self.evolver.population_size)

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which members play."""
        n, starts = self.evolver.population_size, self.fitness_episodes
        return VectorEnv(self.env, self.agent, n, n, starts, self.eval_episodes, self.chunk)

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent."""
        return self.vector_env.parallel

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes; the first one takes random_steps instead."""
        episodes = self.evolver.population_size * self.fitness_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    @property
    def prefill(self) -> int:
        """Steps of each slot at random, which the first iteration takes; 0 where there are none."""
        return -(-self.random_steps // self.vector_env.num_slots)

    @property
    def first_steps(self) -> int:
        """The most env steps that the first iteration takes."""
        return self.vector_env.num_slots * self.prefill or self.work["env_steps"][1]

    def init(self, key: Key, hyperparams: CEMRLHyperparams, env_params: Any = None) -> CEMRLState:
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        agent, evolver, replay = actors.begin(self, key, hyperparams, env_params)
        return CEMRLState(hyperparams, env_params, agent, evolver, replay, jnp.int32(0), jnp.int32(0), jnp.float32(0))

    def step(self, state: CEMRLState, key: Key) -> tuple[CEMRLState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: CEMRLState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def plan(self, state: CEMRLState, key: Key) -> tuple[Plan, Asked]:
        """Episodes of what the evolver asks for, of which some have learned; or the steps at random."""
        key_ask, key_pick, key_learn = jax.random.split(key, 3)
        hyperparams, n, m = self.now(state), self.evolver.population_size, self.num_learners
        random = (state.replay.size == 0) & (self.random_steps > 0)

        members, _, evolver = search.ask(self.evolver, key_ask, state.evolver, hyperparams.evolver)
        picked = jnp.argsort(jax.random.uniform(key_pick, (n,)))[:m]
        learning = ~random & (state.generation >= self.warmup_generations) & (state.replay.size > 0)
        updates = jnp.where(learning, jnp.clip(state.collected, self.min_updates, self.max_updates), 0)
        agent, learned, metrics = self.learn(state, tree.index(members, picked), key_learn, updates)
        members = jax.tree.map(lambda x, new: x.at[picked].set(new), members, learned)
        plan = Plan(
            self.vector_env.starts(every=random),
            episodes=jnp.where(random, UNLIMITED, self.fitness_episodes),
            steps=jnp.where(random, self.prefill, UNLIMITED),
            params=members,
            explores=True if self.explore else (),
            random=random,
            stores=True,
        )
        metrics |= {"gradient_steps": updates}
        return plan, Asked(agent, evolver, picked, metrics)

    def exam(self, state: CEMRLState, key: Key) -> Plan:
        """Whole episodes of the center, greedily."""
        del key
        center = tree.broadcast(self.evolver.solution(state.evolver), self.evolver.population_size)
        return self.vector_env.exam(center, False if self.explore else (), random=False, stores=False)

    def play(self, state: CEMRLState, plan: Plan, key: Key) -> tuple[CEMRLState, Played]:
        """What was played, and the state with it in its replay."""
        return actors.play(self, state, plan, key)

    def absorb(self, state: CEMRLState, carry: Asked, played: Played, key: Key) -> tuple[CEMRLState, Metrics]:
        members, random, means = played.plan.params, played.plan.random, played.stats.fitness
        hyperparams, evolver = self.now(state).evolver, search.asked(carry.evolver, state.evolver)
        judged = search.fitness(self.evolver, means)
        told, metrics = search.tell(self.evolver, key, members, judged, evolver, hyperparams)
        evolver = tree.where(~random, told, state.evolver)
        learned = carry.metrics["gradient_steps"] > 0
        metrics |= played.metrics() | carry.metrics
        metrics |= {
            "return_best": played.stats.mean_return.max(),
            "gradient_elites": jnp.where(learned, elites_among(means["return"], carry.picked), 0),
        }
        state = replace(
            state,
            agent=replace(carry.agent, actor=carry.agent.actor.renewed(self.evolver.solution(evolver))),
            evolver=evolver,
            generation=state.generation + ~random,
            collected=jnp.where(random, state.collected, played.stats.steps.sum()),
            env_steps=state.env_steps + played.stats.steps.sum(),
        )
        return state, metrics

    def report(self, state: CEMRLState, played: Played) -> Metrics:
        del state
        return played.stats.evaluation()

    def learn(
        self, state: CEMRLState, chosen: Params, key: Key, updates: Int[Array, ""]
    ) -> tuple[Any, Params, Metrics]:
        """updates steps of the shared critic and of each of the actors, leaves [m, ...], with fresh optimizers."""
        learners = replace(state.agent, actor=jax.vmap(state.agent.actor.renewed)(chosen))
        hyperparams = self.now(state).agent
        learners, _, metrics = actors.learn(self, learners, state.replay, key, updates, hyperparams)
        return learners, learners.actor.params, metrics

    def now(self, state: CEMRLState) -> CEMRLHyperparams:
        """The hyperparameters as they are by this iteration."""
        return hyperparameters.at(state.hyperparams, state.env_steps)

    def behaviour(self, state: CEMRLState) -> Behaviour:
        """How the agent acts in one environment."""
        return Behaviour(self.env, self.agent, self.now(state).agent)

    def policy(self, state: CEMRLState, explores: bool = False) -> SlotPolicy:
        """How the center of the distribution acts in one environment, greedily or exploring."""
        return self.behaviour(state).policy(state.agent.actor.params, explores)

    def inherit(self, state: CEMRLState, parent: CEMRLState) -> CEMRLState:
        """state with the agent, the distribution and the hyperparameters of parent; it keeps its replay."""
        return replace(state, agent=parent.agent, evolver=parent.evolver, hyperparams=parent.hyperparams)
