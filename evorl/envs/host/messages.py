"""Requests to an environment pool and its responses, one row per environment."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class BatchRequest(NamedTuple):
    """Further arguments of a step that waits for only a fraction of the environments."""

    pending: np.ndarray  # [n] bool, rows whose last step is still pending
    autoreset: np.ndarray  # [n] bool, rows in which a step that ends an episode starts the next one
    seeds: np.ndarray  # [n] uint64, seeds of these episodes
    wait_fraction: float  # fraction of the active rows to wait for


@dataclass(frozen=True)
class HostResponse:
    """Leases, step counts and outputs after a call; outputs are 0 in rows without an answer."""

    lease: np.ndarray
    steps: np.ndarray
    obs: list[np.ndarray]
    outcome: list[np.ndarray]  # rewards, terminated, truncated, and in games what became of each agent
    reset_obs: list[np.ndarray]  # first observations of the next episodes
    has_reset: np.ndarray  # [n] bool, whether the next episode has started
    pending: np.ndarray  # [n] bool, whether the step is still pending

    @classmethod
    def create_empty(
        cls, lease: np.ndarray, steps: np.ndarray, obs: list[np.ndarray], outcome: list[np.ndarray]
    ) -> "HostResponse":
        """Create a response with these leases and step counts, and with zeros for the contents of the given buffers."""
        n = len(lease)
        seen, end, first = ([np.zeros((n, *x.shape[1:]), x.dtype) for x in boards] for boards in (obs, outcome, obs))
        return cls(lease.copy(), steps.copy(), seen, end, first, np.zeros(n, bool), np.zeros(n, bool))

    @property
    def end_mask(self) -> np.ndarray:
        """Return the rows whose episode has ended, bool [n]."""
        return self.outcome[1] | self.outcome[2]

    def clear_rows(self, rows: np.ndarray) -> None:
        """Set the observations and outcomes of rows to 0."""
        for array in (*self.obs, *self.outcome):
            array[rows] = 0
