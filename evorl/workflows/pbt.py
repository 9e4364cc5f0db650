"""Population-based training (PBT) of any workflow."""

from dataclasses import field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import metrics as metrics_of
from evorl import tree
from evorl.bounds import reflect
from evorl.ec.objectives import WORST_FITNESS
from evorl.ec.shaping import sanitize_fitness
from evorl.errors import require_int
from evorl.parts import bind, part, resolve_numbers
from evorl.population.search import PriorSpace
from evorl.population.select import Selection, Truncation
from evorl.population.variation import Generation, Perturb, Variation
from evorl.types import Agent, Env, Key, Metrics, Numbers, PolicyFn, Population, State, Workflow
from evorl.workflows import base
from evorl.workflows.members import PopulationMetrics, PopulationPlan, init_members, train_and_evaluate


@struct.dataclass
class PBTState:
    numbers: Numbers
    env_params: PyTree
    members: State  # state of the population
    points: Float[Array, "n d"]  # hyperparameters of the members, in the unit cube of the search space
    variation_state: State
    fitness: Float[Array, " n"]  # in the last evaluation; WORST_FITNESS of members that were replaced since then
    generation: Int[Array, ""]
    env_steps: Float[Array, ""]  # total of all members so far


@part
class PBT(base.BaseStagedWorkflow):
    """Population-based training (PBT): members train, copy fitter members, and vary their hyperparameters.

    In each generation, every member takes steps_per_generation training steps and is evaluated, all on the
    same episodes. Then the selection chooses members that inherit from fitter ones, and the variation changes
    their hyperparameters. The generations are synchronous. A member whose state contains NaN counts as the
    worst; without a parent by the selection, it inherits from the fittest member.

    The searched hyperparameters are those of a member whose value is a prior, and those at their default
    value that have a declared prior. If `search` names some of the latter, only these are searched. Initial
    values are drawn from the priors.

    An evaluation consists of eval_rounds evaluations of all members, with new random keys. Its return is that
    of the member that was the fittest before.

    Args:
        population: Population of runs.
        selection: Selection of the parents from which members inherit.
        variation: Variation of the hyperparameters of members that have inherited.
        steps_per_generation: Number of training steps of each member per generation.
        warmup_steps: Number of additional training steps of each member in the first generation.
        eval_rounds: Number of evaluations of all members in an evaluation of the workflow.
        search: Names, or endings of names, of the hyperparameters with a declared prior that are searched;
            empty for all.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, algorithm 1. With Pairs() and Swarm(), it is PBT-CSO
    (arXiv:2501.15129, section 5.2.3).
    """

    population: Population
    selection: Selection = field(default_factory=Truncation)
    variation: Variation = field(default_factory=Perturb)
    steps_per_generation: int = 4
    warmup_steps: int = 0
    eval_rounds: int = 1
    search: tuple[str, ...] = ()

    is_sharded_by_default: ClassVar[bool] = True

    @property
    def independent_axes(self) -> dict[str, int]:
        """Return the number of members of the population, if they are independent, by mesh axis."""
        return base.independent_axes(self.population)

    def __post_init__(self) -> None:
        base.check_positive(self, "steps_per_generation", "eval_rounds")
        require_int("warmup_steps", self.warmup_steps, 0)
        self.selection.check(self.population.size)
        self.variation.check(self.population.size)
        self.search_space  # noqa: B018  raises OptionError if the search space is invalid

    @property
    def search_space(self) -> PriorSpace:
        """Return the search space, which maps points of the unit cube to hyperparameters."""
        return PriorSpace(self.population.inner, self.search)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum cost of a generation by name; empty if the inner workflow reports none.

        Evaluations are not included.
        """
        return base.total_iteration_cost(self.population, self.steps_per_generation)

    @property
    def initial_env_steps(self) -> float:
        """Return the maximum number of env steps of the first generation."""
        return base.max_total_env_steps(self.population, self.steps_per_generation + self.warmup_steps)

    def state_sharding(self, state: PBTState) -> PBTState:
        return tree.fill_fields(PBTState, "", members=base.state_sharding(self.population, state.members))

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PBTState:
        key_points, key_members, key_memory = jax.random.split(key, 3)
        numbers, space, n = resolve_numbers(self, numbers), self.search_space, self.population.size
        points = jax.random.uniform(key_points, (n, space.size))
        members = init_members(self.population, key_members, space.decode(points), env_params)
        memory = bind(self, numbers).variation.init(key_memory, points)
        return PBTState(numbers, env_params, members, points, memory, jnp.zeros(n), jnp.int32(0), jnp.float32(0))

    def plan(self, state: PBTState, key: Key) -> tuple[PopulationPlan, None]:
        """Plan steps_per_generation training steps of each member and one evaluation.

        PBT carries nothing to `learn_from`, hence the None.
        """
        del key
        first = tree.any_unbatched(state.generation == 0)  # all vmapped copies are at the same generation
        return PopulationPlan(self.steps_per_generation + jnp.where(first, self.warmup_steps, 0), 1), None

    def plan_evaluation(self, state: PBTState, key: Key) -> PopulationPlan:
        """Plan eval_rounds evaluations."""
        del state, key
        return PopulationPlan(0, self.eval_rounds)

    def rollout(self, state: PBTState, plan: PopulationPlan, key: Key) -> tuple[PBTState, PopulationMetrics]:
        """Train and evaluate the members; the state then holds the trained members."""
        members, *results = train_and_evaluate(self.population, state.members, key, plan.steps, plan.evaluations)
        numbers = self.search_space.decode_by_name(state.points)
        return replace(state, members=members), PopulationMetrics(
            numbers, self.population.has_no_nan(members), *results
        )

    def learn_from(self, state: PBTState, carry: None, played: PopulationMetrics, key: Key) -> tuple[PBTState, Metrics]:
        del carry
        key_select, key_vary = jax.random.split(key)
        space, fitness = self.search_space, played.fitness
        source = replace_lost_parents(self.selection(key_select, fitness), fitness)
        generation = Generation(state.points, fitness, source, space.e_folds)
        points, memory = self.variation(key_vary, generation, state.variation_state)
        metrics = played.metrics() | {"members/source": source}

        points = reflect(points, 0.0, 1.0)
        members = self.population.copy_members(state.members, source)
        members = replace(members, numbers=space.decode(points, members.numbers))
        copied = source != jnp.arange(len(source))  # with new hyperparameters, with which nothing is known of it
        fitness = jnp.where(copied, WORST_FITNESS, fitness)
        taken = {"members": members, "points": points, "variation_state": memory, "fitness": fitness}
        env_steps = state.env_steps + metrics["env_steps"]
        return replace(state, generation=state.generation + 1, env_steps=env_steps, **taken), metrics

    def evaluation_metrics(self, state: PBTState, played: PopulationMetrics) -> Metrics:
        """Return the evaluation of the member that was the fittest before, and the returns of all members."""
        evaluation, best = played.evaluation, self.fittest_index(state)
        reported = {name: x[best] for name, x in evaluation.items() if not name.startswith(metrics_of.MEMBERS_PREFIX)}
        returns = {"return_mean": jnp.nanmean(evaluation["return"]), "members/return": evaluation["return"]}
        return played.count_steps_in(reported | returns)

    @property
    def env(self) -> Env:
        """Return the environment of a member."""
        return self.population.inner.env

    @property
    def agent(self) -> Agent:
        """Return the agent of a member."""
        return self.population.inner.agent

    def get_member(self, state: PBTState, i: int | Array) -> tuple[Workflow, State]:
        """Return the workflow and the state of the i-th member."""
        return self.population.get_member(state.members, i)

    def fittest_index(self, state: PBTState) -> Int[Array, ""]:
        """Return the index of the member that was the fittest in the last evaluation of the members."""
        return sanitize_fitness(state.fitness).argmax()

    def policy(self, state: PBTState, explores: bool = False) -> PolicyFn:
        """Return the policy of the fittest member."""
        _, member = self.get_member(state, self.fittest_index(state))
        return self.population.inner.policy(member, explores)

    def inherit(self, state: PBTState, parent: PBTState) -> PBTState:
        """Let all members inherit from the parent's members, and take its points.

        Hyperparameters that are not searched stay as they are.
        """
        taken = {name: getattr(parent, name) for name in ("numbers", "points", "variation_state", "fitness")}
        members = self.population.inherit(state.members, parent.members)
        members = replace(members, numbers=self.search_space.decode(parent.points, state.members.numbers))
        return replace(state, members=members, **taken)


def replace_lost_parents(source: Int[Array, " n"], fitness: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the sources, with the fittest member in place of each source whose fitness is NaN.

    If no fitness is finite, all members stay: their evaluations may have been cut, though their weights are sound.
    """
    replaced = jnp.where(jnp.isnan(fitness[source]), sanitize_fitness(fitness).argmax(), source)
    return jnp.where(jnp.isfinite(fitness).any(), replaced, jnp.arange(len(source), dtype=source.dtype))
