"""ERL: agents that learn by gradient beside a population that evolves, around one replay."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from evorl import hyperparameters, tree
from evorl.agents.td3 import TD3Hyperparams
from evorl.agents.train_state import TrainState
from evorl.ec import search
from evorl.ec.genetic import GA, GAHyperparams
from evorl.ec.shaping import best_first, comparable, elites_among
from evorl.ec.variation import ERLMutation, ERLMutationHyperparams
from evorl.errors import require, unknown
from evorl.hyperparameters import Number, as_state, hyperparameter
from evorl.replay import UNIFORM
from evorl.types import ActorCritic, Env, Evolver, Key, Metrics, Params, Replays, SlotPolicy, State
from evorl.vector_env import UNLIMITED, Behaviour, Plan, Played, VectorEnv, shares
from evorl.workflows import actors, base
from evorl.workflows.base import check_positive

FOLLOWED = ("iteration", "all")
MUTATION_RATE = 0.9


def _of_ga() -> GAHyperparams:
    return GAHyperparams(mutation_rate=MUTATION_RATE, mutation=ERLMutationHyperparams())


@struct.dataclass
class ERLHyperparams:
    """The hyperparameters of the agents and of the evolver. elite_pull: Marchesini et al. 2021, there called tau.

    A child is mutated with probability 0.9, as in the code of Khadka & Tumer 2018.
    """

    agent: Any = struct.field(default_factory=TD3Hyperparams)
    evolver: Any = struct.field(default_factory=_of_ga)
    elite_pull: Number = hyperparameter(0.0, 0, 1, "fraction by which an agent moves to a fitter best member; 0 is ERL")


@struct.dataclass
class ERLState:
    hyperparams: ERLHyperparams
    env_params: Any
    agent: Any  # its actor leads with [num_agents], what else it holds they share
    evolver: Any
    replay: Any  # a Replay
    generation: Any  # [] int32, without the one that acted at random
    env_steps: Any  # [] float32, so far


@dataclass(frozen=True)
class ERL:
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
    agent: ActorCritic
    evolver: Evolver = field(default_factory=lambda: GA(10, num_elites=2, mutation=ERLMutation()))
    num_agents: int = 1
    agent_episodes: int = 1
    injection_interval: int = 1
    updates_follow: str = "iteration"  # or "all"
    min_updates: int = 64
    max_updates: int = 1024
    batch_size: int = 256
    capacity: int = 1_000_000
    replay: Replays = UNIFORM
    random_steps: int = 0
    warmup_generations: int = 0
    fitness_episodes: int = 1
    explore: bool = False  # exploration noise in the episodes that count as fitness
    eval_episodes: int = 10  # of the center, and as many of the agents
    chunk: int = 20

    def __post_init__(self) -> None:
        actors.check(self)
        check_positive(self, "num_agents", "agent_episodes", "injection_interval")
        n = self.evolver.population_size
        require(self.num_agents < n, "num_agents", self.num_agents, f"must be below population_size, {n}")
        if self.updates_follow not in FOLLOWED:
            raise unknown("updates_follow", self.updates_follow, FOLLOWED)

    def hyperparams(self) -> ERLHyperparams:
        evolver = hyperparameters.of(self.evolver)
        if isinstance(evolver, GAHyperparams):
            evolver = replace(evolver, mutation_rate=MUTATION_RATE)
        return ERLHyperparams(hyperparameters.of(self.agent), evolver)

    @property
    def num_slots(self) -> int:
        """One for each member and each agent."""
        return self.evolver.population_size + self.num_agents

    @property
    def agent_slots(self) -> int:
        """In an evaluation, where the center has the others."""
        return self.num_slots // 2

    @property
    def vector_env(self) -> VectorEnv:
        """The environments in which members and agents play."""
        starts, most = max(self.fitness_episodes, self.agent_episodes), -(-self.eval_episodes // self.agent_slots)
        n = self.num_slots
        return VectorEnv(self.env, self.agent, n, n, starts, most * n, self.chunk)

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent."""
        return self.vector_env.parallel

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes, beside the one at random and those of evolution alone."""
        episodes = self.evolver.population_size * self.fitness_episodes + self.num_agents * self.agent_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (self.min_updates, self.max_updates)}

    @property
    def prefill(self) -> int:
        """Steps of each slot at random, which the first iteration takes; 0 where there are none."""
        return -(-self.random_steps // self.num_slots)

    @property
    def first_steps(self) -> int:
        """The most env steps that the first iteration takes."""
        return self.num_slots * self.prefill or self.work["env_steps"][1]

    def init(self, key: Key, hyperparams: ERLHyperparams, env_params: Any = None) -> ERLState:
        key_agents, key_evolver = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        keys = jax.random.split(key_agents, self.num_agents)
        agents = jax.vmap(self.agent.init, (0, None))(keys, hyperparams.agent)
        first = tree.index(agents, 0)
        draw = lambda key: self.agent.init(key, hyperparams.agent).actor.params  # noqa: E731
        evolver = search.begin(self.evolver, key_evolver, first.actor.params, draw, hyperparams.evolver)
        _, row = self.vector_env.blank(first.actor.params, hyperparams.agent, env_params)
        replay, agent = self.replay.empty(self.capacity, row, self.num_slots), replace(first, actor=agents.actor)
        return ERLState(hyperparams, env_params, agent, evolver, replay, jnp.int32(0), jnp.float32(0))

    def step(self, state: ERLState, key: Key) -> tuple[ERLState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: ERLState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def learning(self, state: ERLState, random: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether the agents play and learn in this generation."""
        return ~random & (state.generation >= self.warmup_generations)

    def injecting(self, state: ERLState, random: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether the agents take part in this generation in place of the members asked last."""
        return self.learning(state, random) & ((state.generation + 1) % self.injection_interval == 0)

    def plan(self, state: ERLState, key: Key) -> tuple[Plan, State]:
        """Episodes of what the evolver asks for, greedily, and of the agents; or the steps at random."""
        hyperparams, n, m = self.now(state).evolver, self.evolver.population_size, self.num_agents
        random = (state.replay.size == 0) & (self.random_steps > 0)
        members, _, evolver = search.ask(self.evolver, key, state.evolver, hyperparams)
        agents = state.agent.actor.params
        injected = jax.tree.map(lambda x, own: x.at[n - m :].set(own), members, agents)
        members = tree.where(self.injecting(state, random), injected, members)
        is_agent = jnp.arange(self.num_slots) >= n
        episodes = jnp.where(self.learning(state, random), self.agent_episodes, 0)
        plan = Plan(
            self.vector_env.starts(every=random),
            episodes=jnp.where(random, UNLIMITED, jnp.where(is_agent, episodes, self.fitness_episodes)),
            steps=jnp.where(random, self.prefill, UNLIMITED),
            params=jax.tree.map(lambda *x: jnp.concatenate(x), members, agents),
            explores=self.explore | is_agent,
            random=random,
            stores=True,
        )
        return plan, evolver

    def exam(self, state: ERLState, key: Key) -> Plan:
        """Whole episodes of the center, and as many of the agents in turn, greedily."""
        del key
        k, episodes = self.agent_slots, self.eval_episodes
        center = tree.broadcast(self.evolver.solution(state.evolver), self.num_slots - k)
        in_turn = tree.index(state.agent.actor.params, jnp.arange(k) % self.num_agents)
        params = jax.tree.map(lambda *x: jnp.concatenate(x), center, in_turn)
        plan = self.vector_env.exam(params, explores=False, random=False, stores=False)
        return replace(plan, episodes=jnp.concatenate([shares(episodes, self.num_slots - k), shares(episodes, k)]))

    def play(self, state: ERLState, plan: Plan, key: Key) -> tuple[ERLState, Played]:
        """What was played, and the state with it in its replay."""
        return actors.play(self, state, plan, key)

    def absorb(self, state: ERLState, carry: State, played: Played, key: Key) -> tuple[ERLState, Metrics]:
        key_learn, key_tell = jax.random.split(key)
        stats, random, n, m = played.stats, played.plan.random, self.evolver.population_size, self.num_agents
        members, hyperparams = tree.index(played.plan.params, slice(n)), self.now(state)
        means = stats.fitness
        fitness, returns = means["return"][:n], means["return"][n:]
        learning = self.learning(state, random)
        env_steps = state.env_steps + stats.steps.sum()
        so_far = jnp.minimum(env_steps, self.max_updates).astype(jnp.int32)
        follows = so_far if self.updates_follow == "all" else stats.steps.sum()
        learns = learning & (state.replay.size > 0)
        updates = jnp.where(learns, jnp.clip(follows, self.min_updates, self.max_updates), 0)
        agent = replace(state.agent, actor=self.pulled(state, members, fitness, returns, learning))
        agent, replay, metrics = actors.learn(self, agent, state.replay, key_learn, updates, hyperparams.agent)
        evolver = search.asked(carry, state.evolver)
        judged = search.fitness(self.evolver, tree.index(means, slice(n)))
        told, told_metrics = search.tell(self.evolver, key_tell, members, judged, evolver, hyperparams.evolver)
        metrics |= played.metrics() | told_metrics
        metrics |= {
            "return_best": stats.mean_return[:n].max(),
            "return_agent": tree.index(stats, slice(n, None)).metrics()["return"],
            "gradient_steps": updates,
            "gradient_elites": jnp.where(self.injecting(state, random), elites_among(fitness, jnp.arange(n - m, n)), 0),
        }
        learned = {"agent": agent, "replay": replay, "evolver": tree.where(~random, told, state.evolver)}
        return replace(state, generation=state.generation + ~random, env_steps=env_steps, **learned), metrics

    def report(self, state: ERLState, played: Played) -> Metrics:
        """The metrics of the center, and the return of the agents."""
        del state
        parts = slice(-self.agent_slots), slice(-self.agent_slots, None)
        center, agents = (tree.index(played.stats, part) for part in parts)
        return center.evaluation() | {"return_agent": agents.metrics()["return"]}

    def pulled(
        self, state: ERLState, members: Params, fitness: Float[Array, " n"], returns: Array, learning: Bool[Array, ""]
    ) -> TrainState:
        """The agents' actors, those with a lower return than the fittest member moved to it by elite_pull."""
        actor, best = state.agent.actor, best_first(fitness)[0]
        moved = jax.tree.map(lambda own, x: own + self.now(state).elite_pull * (x[best] - own), actor.params, members)
        return replace(actor, params=tree.where(learning & (fitness[best] > comparable(returns)), moved, actor.params))

    def now(self, state: ERLState) -> ERLHyperparams:
        """The hyperparameters as they are by this iteration."""
        return hyperparameters.at(state.hyperparams, state.env_steps)

    def behaviour(self, state: ERLState) -> Behaviour:
        """How the agent acts in one environment."""
        return Behaviour(self.env, self.agent, self.now(state).agent)

    def policy(self, state: ERLState, explores: bool = False) -> SlotPolicy:
        """How the evolver's center acts in one environment, greedily or exploring."""
        return self.behaviour(state).policy(self.evolver.solution(state.evolver), explores)

    def inherit(self, state: ERLState, parent: ERLState) -> ERLState:
        """state with the agents, the population and the hyperparameters of parent; it keeps its replay."""
        return replace(state, agent=parent.agent, evolver=parent.evolver, hyperparams=parent.hyperparams)
