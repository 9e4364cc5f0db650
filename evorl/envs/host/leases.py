"""Lease numbers, and the description of a failure."""

import threading
from dataclasses import dataclass


class LeaseCounter:
    """Thread-safe counter of leases; a number is never used twice in a process."""

    def __init__(self) -> None:
        self.newest = 0
        self._lock = threading.Lock()

    def new_lease(self) -> int:
        """Return the next lease number."""
        with self._lock:
            self.newest += 1
            return self.newest


LEASE_COUNTER = LeaseCounter()


@dataclass(frozen=True)
class HostFault:
    """The failure of a host environment."""

    env_index: int  # row of the call
    worker: int | None  # None if it runs in this process
    steps: int  # answered steps of the episode
    error: str

    def __str__(self) -> str:
        where = "in this process" if self.worker is None else f"worker {self.worker}"
        return f"environment {self.env_index}, {where}, step {self.steps}: {self.error}"
