"""Population based training of any workflow."""

from dataclasses import field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import metrics as metrics_of
from evorl import tree
from evorl.bounds import reflect
from evorl.ec.shaping import sanitize_fitness
from evorl.errors import require_int
from evorl.parts import bind, part, resolve_numbers
from evorl.population.search import PriorSpace
from evorl.population.select import Selection, Truncation
from evorl.population.variation import Generation, Perturb, Variation
from evorl.types import Agent, Env, Key, Metrics, Numbers, PolicyFn, Population, State, Workflow
from evorl.workflows import base
from evorl.workflows.members import LifeMetrics, LifePlan, init_members, train_and_evaluate


@struct.dataclass
class PBTState:
    numbers: Numbers
    env_params: PyTree
    members: State  # the state of the population
    points: Float[Array, "n d"]  # where the members' hyperparameters lie in the unit cube of the space
    variation_state: State  # of the variation
    fitness: Float[Array, " n"]  # of the agents that the members have, when they were last evaluated
    generation: Int[Array, ""]
    env_steps: Float[Array, ""]  # of all members so far


@part
class PBT(base.BaseStagedWorkflow):
    """Members train, are evaluated, take over from fitter ones and explore their hyperparameters.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, algorithm 1, in step; with Pairs() and Swarm() PBT-CSO
    (arXiv:2501.15129, section 5.2.3). Searched are the numbers of a member that are priors, and those at their default
    that have a prior by declaration, or of these only the ones that `search` names; the first values are drawn from the
    priors. A generation is steps_per_generation steps of each member, the first one warmup_steps more, and one
    evaluation, in the same episodes for all. A member whose numbers are lost always takes over from the fittest one.

    An evaluation is eval_rounds evaluations of all members on fresh keys; its return is that of the member which was
    the fittest before.
    """

    population: Population
    selection: Selection = field(default_factory=Truncation)
    variation: Variation = field(default_factory=Perturb)
    steps_per_generation: int = 4
    warmup_steps: int = 0
    eval_rounds: int = 1
    search: tuple[str, ...] = ()

    parallel_size_fields: ClassVar[tuple[str, ...]] = ("population",)

    def __post_init__(self) -> None:
        base.check_positive(self, "steps_per_generation", "eval_rounds")
        require_int("warmup_steps", self.warmup_steps, 0)
        self.selection.check(self.population.size)
        self.variation.check(self.population.size)
        self.search_space  # noqa: B018  which raises

    @property
    def search_space(self) -> PriorSpace:
        """The numbers that are searched, as points of a cube."""
        return PriorSpace(self.population.inner, self.search)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """The least and the most that a generation takes, evaluation aside, where the inner workflow says so."""
        return base.total_iteration_cost(self.population, self.steps_per_generation)

    @property
    def initial_env_steps(self) -> float:
        """The most env steps that the first generation takes."""
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

    def plan(self, state: PBTState, key: Key) -> tuple[LifePlan, None]:
        """steps_per_generation steps and an evaluation."""
        del key
        first = tree.any_unbatched(state.generation == 0)  # vmapped copies are at the same generation
        return LifePlan(self.steps_per_generation + jnp.where(first, self.warmup_steps, 0), 1), None

    def plan_evaluation(self, state: PBTState, key: Key) -> LifePlan:
        """eval_rounds evaluations."""
        del state, key
        return LifePlan(0, self.eval_rounds)

    def rollout(self, state: PBTState, plan: LifePlan, key: Key) -> tuple[PBTState, LifeMetrics]:
        """The state with its members as they are afterwards."""
        members, *lived = train_and_evaluate(self.population, state.members, key, plan.steps, plan.evaluations)
        numbers = self.search_space.decode_by_name(state.points)
        return replace(state, members=members), LifeMetrics(numbers, self.population.has_no_nan(members), *lived)

    def learn_from(self, state: PBTState, carry: None, played: LifeMetrics, key: Key) -> tuple[PBTState, Metrics]:
        del carry
        key_select, key_vary = jax.random.split(key)
        space, fitness = self.search_space, played.fitness
        source = replace_lost_parents(self.selection(key_select, fitness), fitness)
        generation = Generation(state.points, fitness, source, space.e_folds)
        points, memory = self.variation(key_vary, generation, state.variation_state)
        metrics = played.metrics() | {"members/source": source}

        points = reflect(points, 0.0, 1.0)
        members = self.population.copy_members(state.members, source)
        members = replace(members, numbers=space.decode(points))
        taken = {"members": members, "points": points, "variation_state": memory, "fitness": fitness[source]}
        env_steps = state.env_steps + metrics["env_steps"]
        return replace(state, generation=state.generation + 1, env_steps=env_steps, **taken), metrics

    def evaluation_metrics(self, state: PBTState, played: LifeMetrics) -> Metrics:
        """The evaluation of the member that was the fittest before, and what all have reached."""
        evaluation, best = played.evaluation, self.fittest_index(state)
        reported = {name: x[best] for name, x in evaluation.items() if not name.startswith(metrics_of.MEMBERS_PREFIX)}
        return reported | {"return_mean": evaluation["return"].mean(), "members/return": evaluation["return"]}

    @property
    def env(self) -> Env:
        """That of a member."""
        return self.population.inner.env

    @property
    def agent(self) -> Agent:
        """That of a member."""
        return self.population.inner.agent

    def get_member(self, state: PBTState, i: int | Array) -> tuple[Workflow, State]:
        """The workflow and the state of the i-th member."""
        return self.population.get_member(state.members, i)

    def fittest_index(self, state: PBTState) -> Int[Array, ""]:
        """Which member was the fittest when they were last evaluated."""
        return sanitize_fitness(state.fitness).argmax()

    def policy(self, state: PBTState, explores: bool = False) -> PolicyFn:
        """How the fittest member acts in one environment, greedily or exploring."""
        _, member = self.get_member(state, self.fittest_index(state))
        return self.population.inner.policy(member, explores)

    def inherit(self, state: PBTState, parent: PBTState) -> PBTState:
        """state with all that its members can take from those of parent, and with its points and hyperparameters."""
        taken = {name: getattr(parent, name) for name in ("numbers", "points", "variation_state", "fitness")}
        return replace(state, members=self.population.inherit(state.members, parent.members), **taken)


def replace_lost_parents(source: Int[Array, " n"], fitness: Float[Array, " n"]) -> Int[Array, " n"]:
    """source, with the fittest member as the parent of all whose own is lost."""
    return jnp.where(jnp.isnan(fitness[source]), sanitize_fitness(fitness).argmax(), source)
