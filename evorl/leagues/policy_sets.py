"""Policy sets, which act with the policies of a pool; the pool stores only what a policy reads of a training state."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.leagues.roles import Role
from evorl.parts import abstract_numbers
from evorl.spaces import random_action, to_shape_structs
from evorl.types import Key, Memory, PolicyWorkflow, State


@runtime_checkable
class PolicySet(Protocol):
    """Protocol of a policy set, with which the players of a role act by stored policies."""

    @property
    def initial_memory(self) -> Memory:
        """Return the recurrent state at the start of an episode; None without one."""
        ...

    def act(self, kept: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        """Select an action of one player.

        Args:
            kept: Policy as the pool stores it.
            obs: Observation of the player.
            memory: Recurrent state before the observation.
            key: Random key.

        Returns:
            The action, and the recurrent state after the observation.
        """
        ...


@dataclass(frozen=True)
class RandomPolicySet:
    """Policy set in which all legal actions are equally likely; nothing is stored."""

    role: Role

    initial_memory = None

    def act(self, kept: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        del kept
        return random_action(self.role.action_space, self.role.observation_space, obs, key), memory


@dataclass(frozen=True, eq=False)
class WorkflowPolicySet:
    """Policy set of a workflow, which stores the leaves of its state that its policy reads, as {path: leaf}.

    The leaves are found by tracing, so that any workflow with a policy can be used without declaring them.
    """

    workflow: PolicyWorkflow
    explores: bool

    @property
    def initial_memory(self) -> Memory:
        return self.workflow.agent.initial_memory()

    @cached_property
    def state_shapes(self) -> State:
        """Return the shapes of the state of the workflow."""
        return jax.eval_shape(self.workflow.init, jax.random.key(0), abstract_numbers(self.workflow))

    @cached_property
    def read_paths(self) -> tuple[str, ...]:
        """Return the paths of the leaves that the policy reads."""
        paths, leaves, structure = _flatten_with_path(self.state_shapes)

        def act(leaves: list[Any], obs: Any, memory: Memory, key: Key) -> Any:
            state = jax.tree.unflatten(structure, leaves)
            return self.workflow.policy(state, self.explores)(obs, memory, key)[:2]

        obs = to_shape_structs(self.workflow.env.observation_space)
        jaxpr = jax.make_jaxpr(act)(leaves, obs, self.initial_memory, jax.random.key(0)).jaxpr
        needed = set(map(id, jaxpr.outvars))
        for equation in reversed(jaxpr.eqns):
            if needed & set(map(id, equation.outvars)):
                needed |= set(map(id, equation.invars))
        return tuple(path for path, x in zip(paths, jaxpr.invars[: len(paths)], strict=True) if id(x) in needed)

    def extract_policy(self, state: State) -> dict[str, Any]:
        """Return the leaves of a state that the pool stores."""
        paths, leaves, _ = _flatten_with_path(state)
        by_path = dict(zip(paths, leaves, strict=True))
        return {path: by_path[path] for path in self.read_paths}

    def insert_policy(self, state: State, kept: dict[str, Any]) -> State:
        """Return a state with the stored leaves of another one, so that it continues with the policy of that one."""
        paths, leaves, structure = _flatten_with_path(state)
        return jax.tree.unflatten(structure, [kept.get(path, x) for path, x in zip(paths, leaves, strict=True)])

    def act(self, kept: dict[str, Any], obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        """Select an action with a stored policy."""
        return self._act_jit(kept, obs, memory, key)

    @cached_property
    def _act_jit(self) -> Callable[..., tuple[Any, Memory]]:
        return jax.jit(lambda kept, obs, memory, key: self.policy(kept)(obs, memory, key)[:2])

    def policy(self, kept: dict[str, Any]) -> Any:
        """Return the policy of the workflow for a state that has the stored leaves and zeros elsewhere."""
        paths, leaves, structure = _flatten_with_path(self.state_shapes)
        whole = [kept[path] if path in kept else tree.zeros_like(x) for path, x in zip(paths, leaves, strict=True)]
        return self.workflow.policy(jax.tree.unflatten(structure, whole), self.explores)


def _flatten_with_path(state: State) -> tuple[list[str], list[Any], Any]:
    found, structure = jax.tree.flatten_with_path(state)
    return [jax.tree_util.keystr(path) for path, _ in found], [x for _, x in found], structure
