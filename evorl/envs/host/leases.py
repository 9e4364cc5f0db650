"""The numbers of leases, and what went wrong with one."""

import threading
from dataclasses import dataclass


class LeaseCounter:
    """The numbers of leases, of which none comes twice in this process."""

    def __init__(self) -> None:
        self.newest = 0
        self._lock = threading.Lock()

    def new_lease(self) -> int:
        """The next one."""
        with self._lock:
            self.newest += 1
            return self.newest


LEASE_COUNTER = LeaseCounter()


@dataclass(frozen=True)
class HostFault:
    """What went wrong in an environment."""

    env_index: int  # which row of a call it was
    worker: int | None  # None for this process
    steps: int  # of its episode, that it has answered
    error: str

    def __str__(self) -> str:
        where = "in this process" if self.worker is None else f"worker {self.worker}"
        return f"environment {self.env_index}, {where}, step {self.steps}: {self.error}"
