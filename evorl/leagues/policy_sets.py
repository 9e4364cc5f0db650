"""What of a training's state its policy reads, so that a pool keeps that alone."""

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
    """How the players of a role act, by what a pool keeps of a policy."""

    @property
    def initial_memory(self) -> Memory:
        """The memory at the start of an episode."""
        ...

    def act(self, kept: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        """An action, and the memory after it."""
        ...


@dataclass(frozen=True)
class RandomPolicySet:
    """Players of whom nothing is kept: any legal action is as likely."""

    role: Role

    initial_memory = None

    def act(self, kept: Any, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        del kept
        return random_action(self.role.action_space, self.role.observation_space, obs, key), memory


@dataclass(frozen=True, eq=False)
class WorkflowPolicySet:
    """How a workflow's policy acts, by the leaves of its state that it reads: {path: leaf}.

    They are found by tracing, so that any workflow with a policy has players in a league, and none says how.
    """

    workflow: PolicyWorkflow
    explores: bool

    @cached_property
    def initial_memory(self) -> Memory:
        return self.workflow.agent.initial_memory()

    @cached_property
    def state_shapes(self) -> State:
        """The state by its shapes."""
        return jax.eval_shape(self.workflow.init, jax.random.key(0), abstract_numbers(self.workflow))

    @cached_property
    def read_paths(self) -> tuple[str, ...]:
        """The paths of the leaves that the policy reads."""
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
        """What of a state a pool keeps."""
        paths, leaves, _ = _flatten_with_path(state)
        by_path = dict(zip(paths, leaves, strict=True))
        return {path: by_path[path] for path in self.read_paths}

    def insert_policy(self, state: State, kept: dict[str, Any]) -> State:
        """The state with what was kept of another, by whose policy it goes on."""
        paths, leaves, structure = _flatten_with_path(state)
        return jax.tree.unflatten(structure, [kept.get(path, x) for path, x in zip(paths, leaves, strict=True)])

    def act(self, kept: dict[str, Any], obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        """An action by what was kept, and the memory after it."""
        return self._act_jit(kept, obs, memory, key)

    @cached_property
    def _act_jit(self) -> Callable[..., tuple[Any, Memory]]:
        return jax.jit(lambda kept, obs, memory, key: self.policy(kept)(obs, memory, key)[:2])

    def policy(self, kept: dict[str, Any]) -> Any:
        """The workflow's, of a state of which nothing else is known."""
        paths, leaves, structure = _flatten_with_path(self.state_shapes)
        whole = [kept[path] if path in kept else tree.zeros_like(x) for path, x in zip(paths, leaves, strict=True)]
        return self.workflow.policy(jax.tree.unflatten(structure, whole), self.explores)


def _flatten_with_path(state: State) -> tuple[list[str], list[Any], Any]:
    found, structure = jax.tree.flatten_with_path(state)
    return [jax.tree_util.keystr(path) for path, _ in found], [x for _, x in found], structure
