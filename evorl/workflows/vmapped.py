"""Population of independent copies of a workflow."""

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
    """Population of independent copies of a workflow, vectorized with vmap.

    All leaves of the state and of the metrics have a leading axis [size]. The copies train with separate
    random keys. They are evaluated with the same key, so that they play the same episodes.

    Args:
        inner: Workflow of one copy.
        size: Number of copies.
    """

    inner: Workflow
    size: int

    is_sharded_by_default: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_int("size", self.size)
        base.require_env_steps(self.inner, "inner")

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of copies, which are independent, along the mesh axis of members."""
        return {mesh.MEMBERS: self.size}

    independent_axes = parallel_axes

    def state_sharding(self, state: State) -> str:
        """Return the mesh axis of members, which is the leading axis of all leaves."""
        del state
        return mesh.MEMBERS

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum cost of an iteration of all copies by name; empty if none is reported."""
        return base.total_iteration_cost(self.inner, self.size)

    @property
    def initial_env_steps(self) -> float:
        """Return the maximum number of env steps of the first iteration of all copies."""
        return self.size * base.max_env_steps(self.inner)[0]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> State:
        """Return the initial state; numbers have a leading axis [size] (see tree.broadcast), env_params are shared."""
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
        """Let each member i inherit from member source[i], in place, without its replay (see members.copy_members)."""
        return members.copy_members(self.inner.inherit, state, source)

    def has_no_nan(self, state: State) -> Bool[Array, " size"]:
        """Return which members have a state without NaN, bool [size]; replay buffers are not checked."""
        return members.has_no_nan(state)

    def get_member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """Return the inner workflow and the state of the i-th copy."""
        return self.inner, tree.index(state, i)
