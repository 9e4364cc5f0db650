"""Policy search: a population of policies, of which the fitter have more say in the next one."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import tree
from evorl.agents.mlp_policy import MLPPolicyHyperparams
from evorl.ec.openes import OpenES, OpenESHyperparams
from evorl.errors import require, unknown
from evorl.hyperparameters import as_state, default
from evorl.normalize import Statistics
from evorl.rollout import UNLIMITED, EpisodeStats
from evorl.types import Agent, Env, Evolver, Key, Metrics, Params, SlotPolicy, Transition
from evorl.workflows.base import VectorEnv, begin, behaviour, check_positive, shares

NORMALIZATIONS = ("none", "vbn", "running")


@struct.dataclass
class EvolutionHyperparams:
    """The hyperparameters of the evolver, and of the policy where it has any."""

    evolver: Any = default(OpenESHyperparams)
    agent: Any = default(MLPPolicyHyperparams)


@struct.dataclass
class EvolutionState:
    hyperparams: EvolutionHyperparams
    env_params: Any
    agent: Any  # whose actor is the center of the distribution
    evolver: Any
    statistics: Any  # of observations, where they are normalized
    iteration: Any  # [] int32


@dataclass(frozen=True)
class Evolution:
    """An iteration is ask, fitness_episodes whole episodes of each member, and tell.

    Fitness is the mean undiscounted return, of greedy actions unless explore. With same_episodes, all members of a
    generation play the same episodes: the same starts and the same chance (common random numbers). Observations are
    normalized, by the same statistics for all members, with normalization
    vbn: by vbn_steps steps at random, which the first iteration takes instead (virtual batch normalization; Salimans et
    al. 2017, arXiv:1703.03864, section 2.1);
    running: by all observations before this iteration (Mania et al. 2018, arXiv:1803.07055, section 3.2).
    members_at_once, where a population does not fit in memory, is how many are evaluated side by side, 0 for all.
    """

    env: Env
    agent: Agent
    evolver: Evolver = field(default_factory=OpenES)
    fitness_episodes: int = 1
    explore: bool = False
    same_episodes: bool = False
    normalization: str = "vbn"
    vbn_steps: int = 10_000
    members_at_once: int = 0
    eval_episodes: int = 128
    chunk: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "fitness_episodes", "vbn_steps", "eval_episodes", "chunk")
        if self.normalization not in NORMALIZATIONS:
            raise unknown("normalization", self.normalization, NORMALIZATIONS)
        n, m = self.evolver.population_size, self.members_at_once
        divides = m >= 0 and n % (m or n) == 0
        require(divides, "members_at_once", m, f"must divide population_size, {n}, or be 0 for all members")

    @property
    def blocks(self) -> int:
        """Parts of the population that are evaluated one after the other."""
        return self.evolver.population_size // (self.members_at_once or self.evolver.population_size)

    @property
    def num_slots(self) -> int:
        """Episodes of a generation, which are played side by side."""
        return self.evolver.population_size * self.fitness_episodes

    @property
    def vector_env(self) -> VectorEnv:
        """The environments of one block: each episode has its own."""
        episodes = -(-self.eval_episodes // self.blocks)
        return VectorEnv(self.env, self.agent, self.num_slots // self.blocks, 1, episodes, self.chunk)

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes; with vbn the first one takes vbn_steps instead."""
        steps = (self.num_slots, self.num_slots * self.env.max_episode_steps)
        return {"env_steps": steps, "gradient_steps": (0, 0)}

    def init(self, key: Key, hyperparams: EvolutionHyperparams, env_params: Any = None) -> EvolutionState:
        key_agent, key_evolver = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        agent = self.agent.init(key_agent, hyperparams.agent)
        draw = lambda key: self.agent.init(key, hyperparams.agent).actor.params  # noqa: E731
        evolver = begin(self.evolver, key_evolver, agent.actor.params, draw, hyperparams.evolver)
        statistics = ()
        if self.normalization != "none":
            _, row = self.vector_env.blank(agent.actor.params, hyperparams.agent, env_params)
            statistics = Statistics.empty(row.obs)
        return EvolutionState(hyperparams, env_params, agent, evolver, statistics, jnp.int32(0))

    def step(self, state: EvolutionState, key: Key) -> tuple[EvolutionState, Metrics]:
        return self.advance(state, key, False)[:2]

    def evaluate(self, state: EvolutionState, key: Key) -> Metrics:
        return self.advance(state, key, True)[2]

    def advance(
        self, state: EvolutionState, key: Key, evaluating: bool | Array
    ) -> tuple[EvolutionState, Metrics, Metrics]:
        """A generation; or the first iteration, at random; or episodes of the center, which leave the state alone."""
        key_ask, key_play, key_tell = jax.random.split(key, 3)
        hyperparams, n = state.hyperparams.evolver, self.evolver.population_size
        evaluating = jnp.asarray(evaluating)
        random = (state.iteration == 0) & ~evaluating & (self.normalization == "vbn")
        searching = ~(random | evaluating)

        with jax.named_scope("evolution"):
            genomes, evolver = self.evolver.ask(key_ask, state.evolver, hyperparams)
            members = jax.vmap(self.evolver.to_params, (None, 0, None))(evolver, genomes, hyperparams)
        members = tree.where(evaluating, tree.broadcast(state.agent.actor.params, n), members)
        stats, statistics, metrics = self.play(state, members, key_play, evaluating, random)
        fitness = stats.mean_return.reshape(n, -1).mean(1)
        with jax.named_scope("evolution"):
            told, told_metrics = self.evolver.tell(key_tell, genomes, fitness, evolver, hyperparams)
        evolver = tree.where(searching, told, state.evolver)
        metrics |= stats.metrics() | told_metrics
        metrics |= {"return_best": jnp.nanmax(fitness), "gradient_steps": jnp.int32(0)}
        actor = replace(state.agent.actor, params=self.evolver.solution(evolver))
        state = replace(
            state,
            agent=replace(state.agent, actor=actor),
            evolver=evolver,
            statistics=statistics,
            iteration=state.iteration + ~evaluating,
        )
        return state, metrics, stats.evaluation()

    def play(
        self, state: EvolutionState, members: Params, key: Key, evaluating: Array, random: Array
    ) -> tuple[EpisodeStats, Any, Metrics]:
        """What each slot did, [n * fitness_episodes], the statistics after it, and metrics of what was played."""
        quota = shares(self.eval_episodes, self.num_slots)
        blocks = jax.tree.map(lambda x: x.reshape(self.blocks, -1, *x.shape[1:]), (members, quota))
        same, slot = self.same_episodes & ~(evaluating | random), jnp.arange(self.vector_env.num_slots)

        def play_block(
            statistics: Any, block: tuple[Key, tuple[Params, Array]]
        ) -> tuple[Any, tuple[EpisodeStats, Metrics]]:
            key, (members, quota) = block
            slots, stats, statistics = self.vector_env.play(
                state.env_params,
                self.acting(state, members, evaluating, random),
                key,
                slots=None,
                restart=True,
                episodes=jnp.where(evaluating, quota, jnp.where(random, UNLIMITED, 1)),
                steps=jnp.where(random, -(-self.vbn_steps // self.num_slots), UNLIMITED),
                every_row=evaluating | random,
                store=self.observing(evaluating, random),
                stored=statistics,
                common_random_group=jnp.where(same, slot % self.fitness_episodes, slot),
            )
            return statistics, (stats, self.vector_env.described(slots))

        keys = jax.random.split(key, self.blocks)[jnp.where(same, 0, jnp.arange(self.blocks))]
        statistics, (tallies, described) = jax.lax.scan(play_block, state.statistics, (keys, blocks))
        return tree.merge_axes(tallies), statistics, tree.mean(described)

    def acting(self, state: EvolutionState, members: Params, evaluating: Array, random: Array) -> Any:
        """How slots act, the episodes of a member side by side."""
        exploring = ~evaluating if self.explore else False
        policy = behaviour(
            self.env, self.agent, state.hyperparams.agent, self.normalization == "vbn" and random, exploring
        )

        def act(params: Params, obs: Any, memory: Any, keys: Key) -> Any:
            return jax.vmap(partial(policy, params))(self.normalized(state, obs), memory, keys)

        def of_all(obs: Any, memory: Any, keys: Key) -> Any:
            rows = jax.tree.map(lambda x: x.reshape(-1, self.fitness_episodes, *x.shape[1:]), (obs, memory, keys))
            return tree.merge_axes(jax.vmap(act)(members, *rows))

        return of_all

    def observing(self, evaluating: Array, random: Array) -> Any:
        """What takes a chunk's observations into the statistics, those that are finite."""
        if self.normalization == "none":
            return lambda statistics, transitions, mask: statistics
        counts = random if self.normalization == "vbn" else ~evaluating

        def store(statistics: Statistics, transitions: Transition, mask: Array) -> Statistics:
            obs = tree.merge_axes(transitions.obs)
            return statistics.update(obs, mask.reshape(-1) & counts & tree.finite_rows(obs))

        return store

    def normalized(self, state: EvolutionState, obs: Any) -> Any:
        """An observation as the policy sees it."""
        return obs if self.normalization == "none" else state.statistics.normalize(obs)

    def policy(self, state: EvolutionState, explores: bool = False) -> SlotPolicy:
        """How the center acts in one environment, greedily or exploring."""
        act = behaviour(self.env, self.agent, state.hyperparams.agent, False, explores)
        return lambda obs, memory, key: act(state.agent.actor.params, self.normalized(state, obs), memory, key)

    def inherit(self, state: EvolutionState, parent: EvolutionState) -> EvolutionState:
        """state with the agent, the distribution, what its policy needs and the hyperparameters of parent."""
        taken = {"agent": parent.agent, "evolver": parent.evolver, "statistics": parent.statistics}
        return replace(state, hyperparams=parent.hyperparams, **taken)
