"""CEM-RL: a distribution over actors, some of which learn by gradient."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import tree
from evorl.agents.td3 import TD3Hyperparams
from evorl.ec.cem import CEMHyperparams
from evorl.ec.shaping import best_first
from evorl.errors import require
from evorl.hyperparameters import as_state, default
from evorl.replay import Replay
from evorl.types import ActorCritic, Env, Evolver, Key, Metrics, Params, SlotPolicy
from evorl.workflows import actors
from evorl.workflows.base import VectorEnv, begin, behaviour


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
    replay: Replay
    generation: Any  # [] int32, without the one that acted at random
    collected: Any  # [] int32, env steps of the last generation


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

    @property
    def num_learners(self) -> int:
        """Members that learn by gradient."""
        return round(self.learners * self.evolver.population_size)

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which members play."""
        return VectorEnv(
            self.env, self.agent, self.evolver.population_size, self.fitness_episodes, self.eval_episodes, self.chunk
        )

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes; the first one takes random_steps instead."""
        episodes = self.evolver.population_size * self.fitness_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    def init(self, key: Key, hyperparams: CEMRLHyperparams, env_params: Any = None) -> CEMRLState:
        key_agent, key_evolver = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        agent = self.agent.init(key_agent, hyperparams.agent)
        draw = lambda key: self.agent.init(key, hyperparams.agent).actor.params  # noqa: E731
        evolver = begin(self.evolver, key_evolver, agent.actor.params, draw, hyperparams.evolver)
        _, row = self.vector_env.blank(agent.actor.params, hyperparams.agent, env_params)
        replay = Replay.empty(self.capacity, row)
        return CEMRLState(hyperparams, env_params, agent, evolver, replay, jnp.int32(0), jnp.int32(0))

    def step(self, state: CEMRLState, key: Key) -> tuple[CEMRLState, Metrics]:
        return self.advance(state, key, False)[:2]

    def evaluate(self, state: CEMRLState, key: Key) -> Metrics:
        return self.advance(state, key, True)[2]

    def advance(self, state: CEMRLState, key: Key, evaluating: bool | Array) -> tuple[CEMRLState, Metrics, Metrics]:
        """A generation; or the first iteration, at random; or episodes of the center, which leave the state alone."""
        key_ask, key_pick, key_learn, key_play, key_tell = jax.random.split(key, 5)
        hyperparams, n, m = state.hyperparams, self.evolver.population_size, self.num_learners
        evaluating = jnp.asarray(evaluating)
        random = (state.replay.size == 0) & ~evaluating & (self.random_steps > 0)
        searching = ~(random | evaluating)

        with jax.named_scope("evolution"):
            genomes, evolver = self.evolver.ask(key_ask, state.evolver, hyperparams.evolver)
            members = jax.vmap(self.evolver.to_params, (None, 0, None))(evolver, genomes, hyperparams.evolver)
        picked = jnp.argsort(jax.random.uniform(key_pick, (n,)))[:m]
        learning = searching & (state.generation >= self.warmup_generations) & (state.replay.size > 0)
        updates = jnp.where(learning, jnp.clip(state.collected, self.min_updates, self.max_updates), 0)
        agent, learned, metrics = self.learn(state, tree.index(members, picked), key_learn, updates)
        members = jax.tree.map(lambda x, new: x.at[picked].set(new), members, learned)

        center = tree.broadcast(self.evolver.solution(state.evolver), n)
        slots, stats, replay = actors.play(
            self.vector_env,
            state,
            tree.where(evaluating, center, members),
            key_play,
            evaluating,
            random,
            self.random_steps,
            exploring=~evaluating if self.explore else False,
            episodes=jnp.where(evaluating, self.vector_env.eval_quota, self.fitness_episodes),
        )
        fitness = stats.mean_return
        with jax.named_scope("evolution"):
            told, told_metrics = self.evolver.tell(key_tell, members, fitness, evolver, hyperparams.evolver)
        evolver = tree.where(searching, told, state.evolver)
        is_elite = jnp.zeros(n, bool).at[best_first(fitness)[:m]].set(True)
        metrics |= stats.metrics() | self.vector_env.described(slots) | told_metrics
        metrics |= {
            "return_best": fitness.max(),
            "gradient_steps": updates,
            "gradient_elites": jnp.where(learning, is_elite[picked].sum(), 0),
        }
        state = replace(
            state,
            agent=replace(agent, actor=agent.actor.renewed(self.evolver.solution(evolver))),
            evolver=evolver,
            replay=replay,
            generation=state.generation + searching,
            collected=jnp.where(searching, stats.steps.sum(), state.collected),
        )
        return state, metrics, stats.evaluation()

    def learn(
        self, state: CEMRLState, chosen: Params, key: Key, updates: Int[Array, ""]
    ) -> tuple[Any, Params, Metrics]:
        """updates steps of the shared critic and of each of the actors, leaves [m, ...], with fresh optimizers."""
        learners = replace(state.agent, actor=jax.vmap(state.agent.actor.renewed)(chosen))
        hyperparams = state.hyperparams.agent
        learners, metrics = actors.learn(self.agent, learners, state.replay, self.batch_size, key, updates, hyperparams)
        return learners, learners.actor.params, metrics

    def policy(self, state: CEMRLState, explores: bool = False) -> SlotPolicy:
        """How the center of the distribution acts in one environment, greedily or exploring."""
        acting = behaviour(self.env, self.agent, state.hyperparams.agent, False, explores)
        return partial(acting, state.agent.actor.params)

    def inherit(self, state: CEMRLState, parent: CEMRLState) -> CEMRLState:
        """state with the agent, the distribution and the hyperparameters of parent; it keeps its replay."""
        return replace(state, agent=parent.agent, evolver=parent.evolver, hyperparams=parent.hyperparams)
