"""PGA-MAP-Elites: a quality-diversity archive, part of whose offspring takes gradient steps on a critic."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import tree
from evorl.agents.memory import is_recurrent
from evorl.ec import search
from evorl.errors import require
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
    SearchResults,
    State,
)
from evorl.vector_env import Rollout, RolloutPlan, VectorEnv
from evorl.workflows import base, shared_replay_learning
from evorl.workflows.off_policy import OffPolicy, OffPolicyState


@struct.dataclass
class PGAMEState:
    numbers: Numbers
    env_params: PyTree
    agent: State  # critic and greedy actor
    evolver: State
    center: Params  # the solution, which is the policy of the workflow
    replay: ReplayBuffer
    env_steps: Float[Array, ""]  # total so far


@part
class PGAME(shared_replay_learning.BaseHybrid):
    """PGA-MAP-Elites: part of the offspring of an archive takes gradient steps on a critic before the evaluation.

    In each generation, the critic and a greedy actor take critic_updates gradient steps. Then the last
    num_learners individuals take policy_updates gradient steps each to maximize the value of that critic,
    with fresh optimizers. The very last individual is replaced by the greedy actor. All individuals are
    evaluated, and all their transitions are added to the replay buffer.

    The evolver is an archive whose emitter returns unchanged elites last, such as
    TwoEmitters(IsoLineEmitter(50), EliteEmitter(50)).

    Args:
        env: Environment.
        agent: Off-policy agent with an actor and a critic, such as TD3.
        evolver: Archive of actors.
        num_learners: Number of individuals that learn by gradient, including the greedy actor.
        critic_updates: Number of gradient steps of the critic per generation.
        policy_updates: Number of gradient steps of each individual that learns.
        policy_delay: Number of gradient steps of the critic for each one of the greedy actor.
        batch_size: Number of transitions in a batch.
        capacity: Maximum number of transitions in the replay buffer.
        replay: Factory of the replay buffer.
        fitness_episodes: Number of episodes of each individual.
        eval_episodes: Number of episodes of an evaluation.
        scan_length: Number of steps after which transitions are stored and the end of the rollout is tested.

    Source: Nilsson & Cully 2021, doi:10.1145/3449639.3459304, algorithm 1.
    """

    env: Env
    agent: ActorCritic
    evolver: Evolver
    num_learners: int = 50
    critic_updates: int = 300
    policy_updates: int = 100
    policy_delay: int = 2
    batch_size: int = 100
    capacity: int = 1_000_000
    replay: ReplayFactory = UNIFORM
    fitness_episodes: int = 1
    eval_episodes: int = 100
    scan_length: int = 20
    policy_lr: Number = number(1e-3, 0, 1, "learning rate of the individuals that learn by gradient")
    inherited: ClassVar[tuple[str, ...]] = ("agent", "evolver", "center")
    unused_numbers: ClassVar[Mapping[str, str]] = {"agent.exploration_noise": "individuals that act without noise"}

    def __post_init__(self) -> None:
        core = getattr(self.agent, "core", None)
        why = "must be none: PGA-MAP-Elites learns from single transitions"
        require(not is_recurrent(self.agent), "agent.core", type(core).__name__, why)
        base.fill_agent_spaces(self)
        names = ("critic_updates", "policy_updates", "batch_size", "fitness_episodes", "eval_episodes", "scan_length")
        base.check_positive(self, *names)
        search.require_learns_from_others(self.evolver, "evolver", "individuals that were trained by gradient")
        n = self.evolver.population_size
        require(
            1 <= self.num_learners <= n, "num_learners", self.num_learners, f"must be from 1 to population_size, {n}"
        )
        base.check_replay(self.learner)

    @property
    def learner(self) -> OffPolicy:
        """Return the off-policy workflow by which the critic and the greedy actor learn from the replay buffer."""
        sizes: dict[str, Any] = {"num_updates": self.critic_updates, "policy_delay": self.policy_delay}
        sizes |= {"batch_size": self.batch_size, "capacity": self.capacity, "random_steps": 0}
        return OffPolicy(self.env, self.agent, replay=self.replay, **sizes)

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments in which the individuals are evaluated."""
        n, starts = self.evolver.population_size, self.fitness_episodes
        sizes = {"num_envs": n, "num_actors": n, "eval_episodes": self.eval_episodes}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=self.scan_length, num_rollout_starts=starts)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        Gradient steps are those of the critic.
        """
        episodes = self.evolver.population_size * self.fitness_episodes
        env_steps = (episodes, episodes * self.env.max_episode_steps)
        return {"env_steps": env_steps, "gradient_steps": (0, self.critic_updates)}

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PGAMEState:
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        agent, evolver, replay = shared_replay_learning.init_agent_evolver_replay(bind(self, numbers), key, env_params)
        center = self.evolver.solution(evolver)
        return PGAMEState(numbers, env_params, agent, evolver, center, replay, jnp.float32(0))

    def plan(self, state: PGAMEState, key: Key) -> tuple[RolloutPlan, Any]:
        """Train the critic and some of the individuals that the evolver asks for, and plan the episodes of all."""
        key_ask, key_critic, key_learn = jax.random.split(key, 3)
        m = self.num_learners
        members, _, evolver = search.ask(self.evolver, key_ask, state.evolver)
        begun = tree.any_unbatched(state.replay.size > 0).astype(jnp.int32)
        agent, metrics = self.train_critic(state, key_critic, begun * (self.critic_updates // self.policy_delay))
        learned = self.train_offspring(
            state, agent, tree.index(members, slice(-m, None)), key_learn, begun * self.policy_updates
        )
        learned = jax.tree.map(lambda x, greedy: x.at[-1].set(greedy), learned, agent.actor.params)
        learned = tree.replace_nonfinite_rows(learned, tree.index(members, slice(-m, None)))
        members = jax.tree.map(lambda x, new: x.at[-m:].set(new), members, learned)
        plan = RolloutPlan(self.vector_env.make_starts(), episodes=self.fitness_episodes, params=members, stores=True)
        return plan, (agent, evolver, metrics)

    def plan_evaluation(self, state: PGAMEState, key: Key) -> RolloutPlan:
        """Plan greedy episodes of the solution."""
        del key
        center = tree.broadcast(state.center, self.evolver.population_size)
        return replace(self.vector_env.plan_evaluation(center, stores=False), steps=None)

    def learn_from(self, state: PGAMEState, carry: Any, played: Rollout, key: Key) -> tuple[PGAMEState, Metrics]:
        (agent, asked, metrics), members, means = carry, played.plan.params, played.stats.fitness_means
        evolver, evolver_metrics = search.tell_means(self.evolver, key, members, means, asked, state.evolver)
        moved = {"agent": agent, "evolver": evolver, "center": self.evolver.solution(evolver)}
        state = replace(state, env_steps=state.env_steps + played.stats.steps.sum(), **moved)
        of_greedy = {
            "return_best": jnp.nanmax(played.stats.known_returns),
            "return_greedy": played.stats.mean_return[-1],
        }
        return state, played.metrics() | metrics | evolver_metrics | of_greedy

    def train_critic(self, state: PGAMEState, key: Key, rounds: Int[Array, ""]) -> tuple[Any, Metrics]:
        """Train the critic and the greedy actor.

        Args:
            state: State of the workflow.
            key: Random key.
            rounds: Number of rounds of policy_delay gradient steps of the critic and one of the actor, [].

        Returns:
            The state of the agent and the metrics.
        """
        learning = tree.fill_fields(OffPolicyState, None, agent=state.agent, replay=state.replay)
        learning, metrics = self.learner.learn(learning, key, rounds)
        return learning.agent, metrics

    @jax.named_scope("learning")
    def train_offspring(
        self, state: PGAMEState, agent: Any, chosen: Params, key: Key, updates: Int[Array, ""]
    ) -> Params:
        """Train individuals by gradient steps on the critic of an agent.

        Args:
            state: State of the workflow, with the replay buffer.
            agent: State of the agent, with the critic.
            chosen: Parameters of the individuals, leaves [num_learners, ...].
            key: Random key.
            updates: Number of gradient steps of each individual, [].

        Returns:
            The parameters of the individuals after training.
        """
        agent_part: Any = self.agent
        learner = replace(agent_part, actor_lr=self.policy_lr)

        def update_actors(i: Array, actors: Any) -> tuple[Any, Metrics]:
            key_batch, key_actor = jax.random.split(jax.random.fold_in(key, i))
            rows = base.spread_samples(state.replay.sample(key_batch, (self.num_learners, self.batch_size))).rows

            def update_actor(actor: Any, batch: Any, key: Key) -> Any:
                return base.update_actor_on_batch(learner, replace(agent, actor=actor), batch, key)[0].actor

            return jax.vmap(update_actor)(actors, rows, jax.random.split(key_actor, self.num_learners)), {}

        return base.loop_with_metrics(updates, update_actors, jax.vmap(agent.actor.reset_with_params)(chosen))[0].params

    def policy(self, state: PGAMEState, explores: bool = False) -> PolicyFn:
        """Return the policy of the solution."""
        return self.behaviour(state).bind_params(state.center, explores)

    def with_policy_params(self, state: PGAMEState, params: Params) -> PGAMEState:
        """Return the state with other parameters as the solution."""
        return replace(state, center=params)

    def results(self, state: PGAMEState) -> SearchResults | None:
        """Return the elites of the archive."""
        return self.evolver.results(state.evolver)
