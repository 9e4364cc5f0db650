"""A task: what is to be computed, of which policies, with which key. Nothing else decides what comes out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from typing_extensions import Protocol, runtime_checkable

BEST_RESPONSE, PAYOFF, ROLLOUT = "best_response", "payoff", "rollout"
Value: TypeAlias = list[np.ndarray]  # the leaves of a tree, of keys their data
FetchFn = Callable[[str], Value]  # a value by its name


@dataclass(frozen=True, eq=False)
class Task:
    """A best response of a player, payoffs of some profiles, or a rollout in some environments.

    Best responses read the policies of all versions below their own, and payoffs those of their own too; a version is
    what all players have found in one iteration, the first that with which the pool begins. A rollout reads the policy
    that acts, and its environments as the one before has left them.
    """

    kind: str
    version: int  # of a rollout the iteration that learns from it
    part: int  # which player, profiles or environments
    key: np.ndarray  # its data
    payload: np.ndarray  # weights [players, capacity], profiles [cells, players], or the version that acts []
    value_names: tuple[str, ...]  # the names of values

    @property
    def name(self) -> str:
        """By which its result is known."""
        return f"{self.kind}-{self.version}-{self.part}"


@runtime_checkable
class TaskPrograms(Protocol):
    """Computes the tasks of a training."""

    @property
    def spec(self) -> "TaskSpec":
        """What they are made of."""
        ...

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        """What comes out of a task, which knows the names of what it reads."""
        ...


@runtime_checkable
class TaskSpec(Protocol):
    """What all tasks of a training have in common, which is sent to who computes them."""

    def build_programs(self) -> TaskPrograms:
        """What computes them."""
        ...


def format_policies_name(version: int) -> str:
    """The name of the policies of a version."""
    return f"policies-{version}"


def format_oracle_name(version: int) -> str:
    """The name of what the oracle keeps after a version."""
    return f"rest-{version}"


def format_policy_name(version: int) -> str:
    """The name of the policy that acts in rollouts, as it is after so many iterations."""
    return f"policy-{version}"


def format_envs_name(iteration: int, part: int) -> str:
    """The name of the environments with which a rollout begins."""
    return f"slots-{iteration}-{part}"
