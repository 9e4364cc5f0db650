"""Programs of distributed evolution: one for the fitness of a part of the population, and one for learning from it."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from evorl import tree
from evorl.distributed.task import FetchFn, Task, Value
from evorl.distributed.values import pack_value, release_host_envs, unpack_value
from evorl.normalize import RunningStatistics
from evorl.training.devices import compiler_options
from evorl.types import Key, Metrics, Numbers
from evorl.vector_env import Rollout
from evorl.workflows.blocks import rollout_block, split_plan
from evorl.workflows.evolution import Evolution, EvolutionState


@dataclass(frozen=True)
class EvolutionSpec:
    """Specification that all evaluations of a training have in common.

    The parts of the population are the blocks of the workflow.
    """

    workflow: Evolution
    numbers: Numbers
    env_params: PyTree

    def build_programs(self) -> "EvolutionPrograms":
        return EvolutionPrograms(self)


class EvolutionPrograms:
    """Programs that evaluate individuals and learn from their fitness, with functions that are compiled once."""

    def __init__(self, spec: EvolutionSpec) -> None:
        self.spec, self.workflow = spec, spec.workflow
        size = self.workflow.evolver.population_size
        self.parts = size // (self.workflow.members_at_once or size)
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun, self._evaluated, self.learned = map(compiled, (self._init, self._evaluate_part, self._learn))
        self._given = spec.numbers, spec.env_params

    def init(self, key: Key) -> EvolutionState:
        """Return the initial state of the workflow."""
        return self._begun(key, *self._given)

    @cached_property
    def state_shapes(self) -> EvolutionState:
        """Return the shapes of the state of the workflow."""
        return self._begun.eval_shape(jax.random.key(0), *self._given)

    @cached_property
    def result_shapes(self) -> Any:
        """Return the shapes of the result of a task."""
        return self._evaluated.eval_shape(self.state_shapes, jax.random.key(0), jnp.int32(0))

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        state = unpack_value(self.state_shapes, fetch(task.value_names[0]))
        key = jax.random.wrap_key_data(jnp.asarray(task.key))
        with release_host_envs():
            return pack_value(self._evaluated(state, key, jnp.int32(task.part)))

    def _init(self, key: Key, numbers: Any, env_params: Any) -> EvolutionState:
        return self.workflow.init(key, numbers, env_params)

    def _evaluate_part(self, state: EvolutionState, key: Key, part: Int[Array, ""]) -> Any:
        """Return the episode statistics of a part of the population, its observation statistics, and state metrics."""
        key_plan, key_play, _ = jax.random.split(key, 3)
        workflow = self.workflow.bound(state)
        plan, _ = workflow.plan(state, key_plan)
        own = tree.index(split_plan(workflow, plan, self.parts), part)
        seen = state.obs_statistics
        none = None if seen is None else RunningStatistics.empty(seen.mean)
        return rollout_block(workflow, state, plan, own, none, key_play)

    def _learn(self, state: EvolutionState, results: list[Any], key: Key) -> tuple[EvolutionState, Metrics]:
        """Learn from the results of all parts."""
        key_plan, _, key_learn = jax.random.split(key, 3)
        workflow = self.workflow.bound(state)
        plan, carry = workflow.plan(state, key_plan)
        seen = state.obs_statistics
        for statistics, _ in results:
            seen = None if seen is None else seen.merge(statistics)
        stats, described = zip(*(rest for _, rest in results), strict=True)
        whole = jax.tree.map(lambda *x: jnp.concatenate(x), *stats)
        played = Rollout(plan, None, whole, seen, tree.mean(tree.stack([*described])))
        return workflow.learn_from(state, carry, played, key_learn)


def split_population(workflow: Evolution, parts: int) -> Evolution:
    """Return the workflow whose blocks are the parts of the population."""
    return replace(workflow, members_at_once=workflow.evolver.population_size // parts)
