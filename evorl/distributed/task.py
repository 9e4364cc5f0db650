"""A task: what is to be computed, of which policies, with which key. Nothing else decides what comes out."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

BEST_RESPONSE, PAYOFF = "best_response", "payoff"
Value: TypeAlias = list[np.ndarray]  # the leaves of a tree, of keys their data


@dataclass(frozen=True, eq=False)
class Task:
    """A best response of a player, or payoffs of some profiles.

    It reads the policies of all versions below its own, and their payoffs those of its own too; a version is what all
    players have found in one iteration, the first that with which the pool begins.
    """

    kind: str
    version: int
    part: int  # which player, or which of the profiles
    key: np.ndarray  # its data
    given: np.ndarray  # weights [players, capacity], or profiles [cells, players]
    reads: tuple[str, ...]  # the names of values

    @property
    def name(self) -> str:
        """By which its result is known."""
        return f"{self.kind}-{self.version}-{self.part}"


def policies(version: int) -> str:
    """The name of the policies of a version."""
    return f"policies-{version}"


def rest(version: int) -> str:
    """The name of what the oracle keeps after a version."""
    return f"rest-{version}"
