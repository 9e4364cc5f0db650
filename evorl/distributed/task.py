"""Tasks of distributed training. The fields of a task and the values that it reads determine its result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from typing_extensions import Protocol, runtime_checkable

BEST_RESPONSE, PAYOFF, ROLLOUT = "best_response", "payoff", "rollout"
FITNESS, MEMBERS, RETURNS = "fitness", "members", "returns"
Value: TypeAlias = list[np.ndarray]  # leaves of a pytree; of random keys, their data
FetchFn = Callable[[str], Value]  # returns a value by its name


@dataclass(frozen=True, eq=False)
class Task:
    """Best response, payoffs of some profiles, rollout in some environments, some of a population, or of a tournament.

    A version consists of the policies that all players have found in one iteration; version 0 is the initial
    policies of the pool. A best response reads the policies of all earlier versions, and payoffs also read
    those of their own version. A rollout reads the policy that acts, and its environments as the previous
    rollout left them. The fitness of a part of a population reads the state of the search, from which the
    individuals are sampled. The training of some members of a population reads their states. A batch of a
    tournament reads nothing.
    """

    kind: str
    version: int  # for a rollout or a population, the iteration that learns from it
    part: int  # index of the player, of the batch, or of the part of the environments or the population
    key: np.ndarray  # data of the random key
    # weights [players, capacity], profiles [cells, players], acting version [], part [], or steps and evaluations [2]
    payload: np.ndarray
    value_names: tuple[str, ...]  # names of the values that it reads

    @property
    def name(self) -> str:
        """Return the name under which the result is stored."""
        return f"{self.kind}-{self.version}-{self.part}"


@runtime_checkable
class TaskPrograms(Protocol):
    """Protocol of the programs that compute the tasks of a training."""

    @property
    def spec(self) -> "TaskSpec":
        """Return the specification from which they were built."""
        ...

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        """Compute a task.

        Args:
            task: The task, with the names of the values that it reads.
            fetch: Function that returns a value by its name.

        Returns:
            The result, as leaves.
        """
        ...


@runtime_checkable
class TaskSpec(Protocol):
    """Protocol of a specification that all tasks of a training have in common; it is sent to the workers."""

    def build_programs(self) -> TaskPrograms:
        """Return the programs that compute the tasks."""
        ...


def format_policies_name(version: int) -> str:
    """Return the name of the policies of a version."""
    return f"policies-{version}"


def format_oracle_name(version: int) -> str:
    """Return the name of the state of the oracle after a version."""
    return f"rest-{version}"


def format_policy_name(version: int) -> str:
    """Return the name of the policy that acts in rollouts, after `version` iterations."""
    return f"policy-{version}"


def format_state_name(iteration: int) -> str:
    """Return the name of the state of the search before an iteration."""
    return f"state-{iteration}"


def format_members_name(generation: int, part: int) -> str:
    """Return the name of the states of some members before a generation."""
    return f"members-{generation}-{part}"


def format_envs_name(iteration: int, part: int) -> str:
    """Return the name of the environments in which a rollout starts."""
    return f"slots-{iteration}-{part}"
