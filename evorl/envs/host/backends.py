"""Where environments are: in this process, or elsewhere."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.host.serial_envs import Layout, SerialEnvs, create_shared_memory

MAX_ENVS = 65_536
MAX_BUFFER_BYTES = 2**38  # of addresses, not of memory


@runtime_checkable
class HostBackend(Protocol):
    """Where environments are: in this process, or in workers."""

    buffers: dict[str, np.ndarray]
    max_envs: int

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        """Begins episodes; what went wrong, by place."""
        ...

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        """Has the steps taken whose actions are on the board; with seeds those that end an episode begin the next."""
        ...

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        """Returns once so many of places have done all that was sent: which, [places]; of these what went wrong."""
        ...

    def worker_index(self, place: int) -> int | None:
        """Whose a place is."""
        ...

    def close(self, places: Sequence[int] | None = None) -> None:
        """Closes environments, by default all that there is."""
        ...


class LocalBackend:
    """Environments in this process."""

    def __init__(self, make: Any, layout: Layout) -> None:
        self.max_envs = compute_max_envs(layout)
        self._file = create_shared_memory(layout.nbytes(self.max_envs))
        self.buffers = layout.create_buffers(self.max_envs, self._file)
        self._played = SerialEnvs(make, layout, self.buffers)
        self._failed: dict[int, str] = {}

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        return self._played.reset(places, seeds)

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        self._failed = self._played.step(places, seeds)

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        del count
        return np.ones(len(places), bool), self._failed

    def worker_index(self, place: int) -> None:
        del place

    def close(self, places: Sequence[int] | None = None) -> None:
        self._played.close(list(self._played.envs) if places is None else places)
        if places is None:
            os.close(self._file)


def compute_max_envs(layout: Layout) -> int:
    """As many as there can be."""
    return int(min(MAX_ENVS, max(MAX_BUFFER_BYTES // layout.nbytes(1), 1)))
