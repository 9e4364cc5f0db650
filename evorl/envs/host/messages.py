"""What a call of a pool asks and answers, by row."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class BatchRequest(NamedTuple):
    """What is asked, beside the steps, where a call does not wait for all of them."""

    pending: np.ndarray  # [n] bool, which have asked before
    autoreset: np.ndarray  # [n] bool, where a step that ends an episode begins the next one
    seeds: np.ndarray  # [n] uint64, of that
    wait_fraction: float  # of the rows that act, how many are waited for


@dataclass(frozen=True)
class HostResponse:
    """Leases and counts after a call, and what the environments have said: 0 where none has."""

    lease: np.ndarray
    steps: np.ndarray
    obs: list[np.ndarray]
    outcome: list[np.ndarray]  # rewards, whether terminated, whether truncated, of a game what became of agents
    reset_obs: list[np.ndarray]  # with what the next episodes begin
    has_reset: np.ndarray  # whether one has
    pending: np.ndarray  # whether the step is still under way

    @classmethod
    def create_empty(
        cls, lease: np.ndarray, steps: np.ndarray, obs: list[np.ndarray], outcome: list[np.ndarray]
    ) -> "HostResponse":
        """Of rows with these leases and counts, on boards of these shapes."""
        n = len(lease)
        seen, end, first = ([np.zeros((n, *x.shape[1:]), x.dtype) for x in boards] for boards in (obs, outcome, obs))
        return cls(lease.copy(), steps.copy(), seen, end, first, np.zeros(n, bool), np.zeros(n, bool))

    @property
    def end_mask(self) -> np.ndarray:
        """[n] bool."""
        return self.outcome[1] | self.outcome[2]

    def clear_rows(self, rows: np.ndarray) -> None:
        """Says nothing in rows."""
        for array in (*self.obs, *self.outcome):
            array[rows] = 0
