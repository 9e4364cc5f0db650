"""Policy search: an evolver searches the parameters of a policy."""

from dataclasses import field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import mesh, tree
from evorl.agents.mlp_policy import MLPPolicy
from evorl.ec import search
from evorl.ec.openes import OpenES
from evorl.errors import require, unknown_name_error
from evorl.normalize import RunningStatistics, get_member_shapes
from evorl.parts import bind, part, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import (
    Agent,
    Env,
    Evolver,
    Key,
    Metrics,
    Numbers,
    Params,
    PolicyFn,
    SearchResults,
    State,
)
from evorl.vector_env import UNLIMITED, Rollout, RolloutPlan, VectorEnv
from evorl.workflows import base, blocks
from evorl.workflows.base import check_positive, fill_agent_spaces

NORMALIZATIONS = ("none", "vbn", "running")


@struct.dataclass
class EvolutionState:
    numbers: Numbers
    env_params: PyTree
    agent: State  # its actor is the center of the distribution
    evolver: State
    obs_statistics: RunningStatistics | None  # of observations; None if they are not normalized
    iteration: Int[Array, ""]
    env_steps: Float[Array, ""]  # total so far


@part
class Evolution(base.BasePolicyWorkflow):
    """Policy search with an evolver: ask for individuals, evaluate each in whole episodes, and tell their fitness.

    The return of an individual is the mean undiscounted return, computed with the rewards for learning. By
    default, it is the fitness. Actions are greedy unless `explore`.

    Observations can be normalized, with the same statistics for all individuals. With normalization="vbn"
    (virtual batch normalization; Salimans et al. 2017, arXiv:1703.03864, section 2.1), the statistics are
    those of vbn_steps random steps, which the first iteration takes instead of a generation. With "running"
    (Mania et al. 2018, arXiv:1803.07055, section 3.2), they are those of all observations before the
    iteration.

    Args:
        env: Environment.
        agent: Agent whose policy is searched.
        evolver: Evolver whose individuals are the parameters of the policy.
        fitness_episodes: Number of episodes of each individual.
        explore: Whether individuals act with exploration in these episodes; MLPPolicy has none with continuous
            actions.
        same_episodes: Whether all individuals of a generation play the same episodes, with the same initial
            states and the same random numbers (common random numbers).
        normalization: Normalization of observations: "none", "vbn" or "running".
        vbn_steps: Number of random env steps of "vbn".
        members_at_once: Number of individuals that are evaluated at the same time; it must divide the population
            size. 0 for all, or on a CPU for so many that their weights stay in its caches. Episodes do not
            depend on it.
        eval_episodes: Number of episodes of an evaluation.
        scan_length: Number of steps after which the statistics are updated and the end of the rollout is tested.
    """

    env: Env
    agent: Agent = field(default_factory=MLPPolicy)
    evolver: Evolver = field(default_factory=OpenES)
    fitness_episodes: int = 1
    explore: bool = False
    same_episodes: bool = False
    normalization: str = "vbn"
    vbn_steps: int = 10_000
    members_at_once: int = 0
    eval_episodes: int = 128
    scan_length: int = 20

    inherited: ClassVar[tuple[str, ...]] = ("agent", "evolver", "obs_statistics")
    is_sharded_by_default: ClassVar[bool] = True

    def __post_init__(self) -> None:
        search.require_evolver(self.evolver)
        fill_agent_spaces(self)
        check_positive(self, "fitness_episodes", "vbn_steps", "eval_episodes", "scan_length")
        if self.normalization not in NORMALIZATIONS:
            raise unknown_name_error("normalization", self.normalization, NORMALIZATIONS)
        keeps = (self.evolver.keeps_many or self.evolver.keeps_best) and self.normalization == "running"
        why = f"would change kept individuals of {type(self.evolver).__name__} after their evaluation; use none or vbn"
        require(not keeps, "normalization", self.normalization, why)
        n, m = self.evolver.population_size, self.members_at_once
        divides = m >= 0 and n % (m or n) == 0
        require(divides, "members_at_once", m, f"must divide population_size, {n}, or be 0")

    @property
    def independent_axes(self) -> dict[str, int]:
        """Return the number of individuals, which play with their own environments."""
        return self.parallel_axes

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of individuals that are evaluated at the same time, for several devices to share."""
        return {mesh.ENVS: self.members_at_once or self.evolver.population_size}

    @property
    def num_envs(self) -> int:
        """Return the number of episodes per generation, each of which has a separate environment."""
        return self.evolver.population_size * self.fitness_episodes

    @property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized environments of the population, one for each episode."""
        size = self.evolver.population_size
        sizes = {"num_envs": self.num_envs, "eval_episodes": self.eval_episodes}
        return VectorEnv(self.env, self.agent, **sizes, scan_length=self.scan_length, num_actors=size)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        With vbn, the first iteration takes vbn_steps instead.
        """
        steps = (self.num_envs, self.num_envs * self.env.max_episode_steps)
        return {"env_steps": steps, "gradient_steps": (0, 0)}

    @property
    def prefill_steps(self) -> int:
        """Return the number of random steps of each environment in the first iteration; 0 if there are none."""
        return -(-self.vbn_steps // self.num_envs) if self.normalization == "vbn" else 0

    @property
    def initial_env_steps(self) -> int:
        """Return the maximum number of env steps of the first iteration."""
        return self.num_envs * (self.prefill_steps or self.env.max_episode_steps)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> EvolutionState:
        key_agent, key_evolver = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        bound = bind(self, numbers)
        agent = bound.agent.init(key_agent)
        draw = lambda key: bound.agent.init(key).actor.params  # noqa: E731
        evolver = search.init_evolver_state(bound.evolver, key_evolver, agent.actor.params, draw)
        statistics = None
        if self.normalization != "none":
            _, row = bound.vector_env.init_blank_envs(agent.actor.params, env_params)
            statistics = RunningStatistics.empty(get_member_shapes(row, row.obs))
        return EvolutionState(numbers, env_params, agent, evolver, statistics, jnp.int32(0), jnp.float32(0))

    def plan(self, state: EvolutionState, key: Key) -> tuple[RolloutPlan, tuple[Any, Any]]:
        """Plan fitness_episodes episodes of each individual, or the random steps."""
        random = self.is_random_iteration(state)
        members, genomes, evolver = search.ask(self.evolver, key, state.evolver)
        env_index = jnp.arange(self.num_envs)
        plan = RolloutPlan(
            self.vector_env.make_starts(every=random),
            episodes=jnp.where(random, UNLIMITED, 1),
            steps=jnp.where(random, self.prefill_steps, UNLIMITED),
            seed_group=jnp.where(random, env_index, env_index % self.fitness_episodes) if self.same_episodes else None,
            params=members,
            explores=True if self.explore else None,
            random_actions=random if self.normalization == "vbn" else None,
        )
        return plan, (genomes, evolver)

    def plan_evaluation(self, state: EvolutionState, key: Key) -> RolloutPlan:
        """Plan greedy episodes of the center of the search."""
        del key
        n, num_envs = self.evolver.population_size, self.num_envs
        explores, random = False if self.explore else None, False if self.normalization == "vbn" else None
        center = search.center_genome(self.evolver, state.evolver, state.agent.actor.params)
        plan = self.vector_env.plan_evaluation(tree.broadcast(center, n), explores, random)
        return replace(plan, seed_group=jnp.arange(num_envs) if self.same_episodes else None)

    def rollout(self, state: EvolutionState, plan: RolloutPlan, key: Key) -> tuple[EvolutionState, Rollout]:
        """Run a plan block by block; it stores the observation statistics after the rollout."""
        return state, blocks.rollout_blocks(self, state, plan, key)

    def learn_from(
        self, state: EvolutionState, carry: tuple[Any, Any], played: Rollout, key: Key
    ) -> tuple[EvolutionState, Metrics]:
        (genomes, asked), members, random = carry, played.plan.params, self.is_random_iteration(state)
        n = self.evolver.population_size
        of_members = lambda x: x.reshape(n, -1, *x.shape[1:]).mean(1)  # noqa: E731
        means = jax.tree.map(of_members, played.stats.fitness_means)
        individuals = members if self.evolver.takes_params else genomes
        evolver, metrics = search.tell_means(self.evolver, key, individuals, means, asked, state.evolver)
        statistics = played.stored
        if self.normalization == "vbn":
            evolver = tree.select(~random, evolver, state.evolver)
            statistics = tree.select(random, statistics, state.obs_statistics)
        state = replace(
            self.with_policy_params(state, self.evolver.solution(evolver)),
            evolver=evolver,
            obs_statistics=statistics,
            iteration=state.iteration + 1,
            env_steps=state.env_steps + played.stats.steps.sum(),
        )
        metrics |= {"return_best": jnp.nanmax(of_members(played.stats.known_returns)), "gradient_steps": jnp.int32(0)}
        return state, played.metrics() | metrics

    def is_random_iteration(self, state: EvolutionState) -> Bool[Array, ""]:
        """Return whether this iteration takes random steps instead of a generation, bool [].

        Args:
            state: State of the workflow.
        """
        return (state.iteration == 0) & (self.normalization == "vbn")

    def policy(self, state: EvolutionState, explores: bool = False) -> PolicyFn:
        """Return the policy of the center of the search."""
        return self.behaviour(state).bind_params(state.agent.actor.params, explores)

    def with_policy_params(self, state: EvolutionState, params: Params) -> EvolutionState:
        """Return the state with other parameters as the center."""
        return replace(state, agent=replace(state.agent, actor=replace(state.agent.actor, params=params)))

    def results(self, state: EvolutionState) -> SearchResults | None:
        """Return the solutions of the evolver, if it keeps many."""
        return self.evolver.results(state.evolver)
