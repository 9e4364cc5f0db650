"""Programs of distributed population-based training: one for the training of some members, and one for selection."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from evorl import tree
from evorl.distributed.task import FetchFn, Task, Value, format_members_name
from evorl.distributed.values import pack_value, release_host_envs, unpack_value
from evorl.training.devices import compiler_options
from evorl.types import Key, Metrics, Numbers, State
from evorl.vector_env import hosts
from evorl.workflows import base
from evorl.workflows.members import PopulationMetrics, member_keys, train_and_evaluate
from evorl.workflows.pbt import PBT, PBTState
from evorl.workflows.vmapped import Vmapped


@dataclass(frozen=True)
class PopulationSpec:
    """Specification that all trainings of members have in common."""

    workflow: PBT
    parts: int  # number of parts of the population
    numbers: Numbers
    env_params: PyTree

    def build_programs(self) -> "PopulationPrograms":
        return PopulationPrograms(self)


@dataclass(frozen=True)
class MemberSlice(Vmapped):
    """Consecutive members of a population of `size`, which train and are evaluated with the keys of these members."""

    first: Int[Array, ""] | int = 0

    def step_or_evaluate(self, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
        keys = member_keys(key, self.size, evaluating)
        own = jax.lax.dynamic_slice_in_dim(keys, self.first, tree.leading_size(state))
        return jax.vmap(lambda state, key: base.step_or_evaluate(self.inner, state, key, evaluating))(state, own)


class PopulationPrograms:
    """Programs that train members and select among them, with functions that are compiled once."""

    def __init__(self, spec: PopulationSpec) -> None:
        self.spec, self.workflow, self.parts = spec, spec.workflow, spec.parts
        population: Any = spec.workflow.population
        self.population: Vmapped = population
        self.size = self.population.size // spec.parts  # members of a part
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun, self._trained, self.learned = map(compiled, (self._init, self._train, self._learn))
        self._given = spec.numbers, spec.env_params

    def init(self, key: Key) -> PBTState:
        """Return the initial state of the workflow."""
        return self._begun(key, *self._given)

    @cached_property
    def state_shapes(self) -> PBTState:
        """Return the shapes of the state of the workflow."""
        return self._begun.eval_shape(jax.random.key(0), *self._given)

    @cached_property
    def member_shapes(self) -> State:
        """Return the shapes of the members of a part."""
        return jax.eval_shape(lambda members: tree.index(members, slice(self.size)), self.state_shapes.members)

    @cached_property
    def result_shapes(self) -> Any:
        """Return the shapes of the result of a task."""
        whole = jnp.int32(0)
        return self._trained.eval_shape(self.member_shapes, jax.random.key(0), whole, whole, whole)

    def split_members(self, state: PBTState) -> list[Value]:
        """Return the members of each part; environments on the host stay where they are, and new ones start."""
        members = hosts.clear_leases(state.members)
        n = self.size
        return [pack_value(tree.index(members, slice(i * n, i * n + n))) for i in range(self.parts)]

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        members = unpack_value(self.member_shapes, fetch(format_members_name(task.version, task.part)))
        key = jax.random.wrap_key_data(jnp.asarray(task.key))
        steps, evaluations = map(np.int32, task.payload)
        with release_host_envs():
            members, *metrics = self._trained(members, key, np.int32(task.part), steps, evaluations)
            return pack_value((hosts.clear_leases(members), *metrics))

    def _init(self, key: Key, numbers: Any, env_params: Any) -> PBTState:
        return self.workflow.init(key, numbers, env_params)

    def _train(self, members: State, key: Key, part: Array, steps: Array, evaluations: Array) -> Any:
        """Return the members of a part after their training, and the metrics of training and evaluation."""
        some = MemberSlice(self.population.inner, self.population.size, part * self.size)
        return train_and_evaluate(some, members, jax.random.split(key, 3)[1], steps, evaluations)

    def _learn(self, state: PBTState, results: list[Any], key: Key) -> tuple[PBTState, Metrics]:
        """Select among the members of all parts, and vary their hyperparameters."""
        workflow = self.workflow.bound(state)
        members, *results = jax.tree.map(lambda *x: jnp.concatenate(x), *results)
        numbers = workflow.search_space.decode_by_name(state.points)
        played = PopulationMetrics(numbers, self.population.has_no_nan(members), *results)
        return workflow.learn_from(replace(state, members=members), None, played, jax.random.split(key, 3)[2])
