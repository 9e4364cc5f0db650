"""Many copies of a workflow as one workflow."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Bool, Int

from evorl import mesh, tree
from evorl.errors import require_int
from evorl.types import Key, Metrics, Numbers, State, Workflow
from evorl.workflows import base, members


@dataclass(frozen=True)
class Vmapped:
    """size independent copies of a workflow; every leaf of its state and metrics leads with [size].

    They train with keys of their own and are evaluated with the same one, so that they play the same episodes.
    """

    inner: Workflow
    size: int

    parallel_size_fields: ClassVar[tuple[str, ...]] = ("size",)

    def __post_init__(self) -> None:
        require_int("size", self.size)

    @property
    def parallel_axes(self) -> dict[str, int]:
        """What is independent."""
        return {mesh.MEMBERS: self.size}

    def state_sharding(self, state: State) -> str:
        """All leaves lead with the members."""
        del state
        return mesh.MEMBERS

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration of all copies takes, where the inner workflow says so."""
        return base.total_iteration_cost(self.inner, self.size)

    @property
    def initial_env_steps(self) -> float:
        """The most env steps that the first iteration of all copies takes."""
        return self.size * base.max_env_steps(self.inner)[0]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> State:
        """Leaves of numbers lead with [size] (see tree.broadcast); env_params are shared."""
        here = tree.leading_size(numbers) if jax.tree.leaves(numbers) else self.size
        keys = mesh.local_shard(jax.random.split(key, self.size), mesh.MEMBERS, here)
        return jax.vmap(self.inner.init, (0, 0, None))(keys, numbers, env_params)

    def step(self, state: State, key: Key) -> tuple[State, Metrics]:
        return jax.vmap(self.inner.step)(state, members.member_keys(key, self.size, False))

    def evaluate(self, state: State, key: Key) -> Metrics:
        return jax.vmap(self.inner.evaluate, (0, None))(state, key)

    def step_or_evaluate(self, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
        def step_or_evaluate_member(state: State, key: Key) -> tuple[State, Metrics, Metrics]:
            return base.step_or_evaluate(self.inner, state, key, evaluating)

        return jax.vmap(step_or_evaluate_member)(
            state,
            mesh.local_shard(members.member_keys(key, self.size, evaluating), mesh.MEMBERS, tree.leading_size(state)),
        )

    def inherit(self, state: State, parent: State) -> State:
        return jax.vmap(self.inner.inherit)(state, parent)

    def copy_members(self, state: State, source: Int[Array, " size"]) -> State:
        """Each member inherits from member source [size], in place; its replay stays its own.

        See members.copy_members.
        """
        return members.copy_members(self.inner.inherit, state, source)

    def has_no_nan(self, state: State) -> Bool[Array, " size"]:
        """Which members hold no NaN, their replays left out."""
        return members.has_no_nan(state)

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """The inner workflow and the state of its i-th copy."""
        return self.inner, tree.index(state, i)
