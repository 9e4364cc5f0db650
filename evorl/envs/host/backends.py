"""Backends, which run host environments in this process or elsewhere."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.host.serial_envs import Layout, SerialEnvs, create_shared_memory

MAX_ENVS = 65_536
MAX_BUFFER_BYTES = 2**38  # address space; pages take memory only once they are used


@runtime_checkable
class HostBackend(Protocol):
    """A container of environments, in this process or in worker processes.

    A *place* is the index of an environment, and its row in the buffers. Error messages are single lines.

    Attributes:
        buffers: Observations, actions, rewards and flags by name (`Layout.fields`), shape [max_envs, ...].
        max_envs: The largest number of environments.
    """

    buffers: dict[str, np.ndarray]
    max_envs: int

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        """Start an episode in each place, and write its first observation to the buffers.

        Args:
            places: Indices of environments; an environment that does not exist yet is created.
            seeds: Seed of each episode, aligned with places.

        Returns:
            Error messages of the places that failed, by place.
        """
        ...

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        """Start a step in each place, with the actions in the buffers.

        Args:
            places: Indices of environments.
            seeds: Seeds aligned with places. If given, a step that ends an episode also starts the next one.
        """
        ...

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        """Wait until `count` of the places have answered everything that was sent to them.

        Args:
            places: Indices of environments.
            count: Number of places to wait for.

        Returns:
            Which places have answered, bool [places], and the error messages of those that failed, by place.
        """
        ...

    def worker_index(self, place: int) -> int | None:
        """Return the index of the worker process of a place, or None if it is in this process."""
        ...

    def close(self, places: Sequence[int] | None = None) -> None:
        """Close environments.

        Args:
            places: Indices of environments. None closes all of them and ends the backend.
        """
        ...


class LocalBackend:
    """Backend that steps environments sequentially in this process."""

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
    """Return the number of environments that fit into MAX_BUFFER_BYTES: at least 1, at most MAX_ENVS."""
    return int(min(MAX_ENVS, max(MAX_BUFFER_BYTES // layout.nbytes(1), 1)))
