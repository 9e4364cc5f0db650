"""Where environments are: in this process, or elsewhere."""

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evorl.envs.host.played import Layout, Played, memory

MOST_PLACES = 65_536
MOST_BYTES = 2**38  # of addresses, not of memory


@runtime_checkable
class Places(Protocol):
    """Where environments are: in this process, or in workers."""

    board: dict[str, np.ndarray]
    most: int

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        """Begins episodes; what went wrong, by place."""
        ...

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        """Has the steps taken whose actions are on the board; with seeds those that end an episode begin the next."""
        ...

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        """Returns once so many of places have done all that was sent: which, [places]; of these what went wrong."""
        ...

    def worker(self, place: int) -> int | None:
        """Whose a place is."""
        ...

    def close(self, places: Sequence[int] | None = None) -> None:
        """Closes environments, by default all that there is."""
        ...


class Here:
    """Environments in this process."""

    def __init__(self, make: Any, layout: Layout) -> None:
        self.most = most_places(layout)
        self._file = memory(layout.nbytes(self.most))
        self.board = layout.board(self.most, self._file)
        self._played = Played(make, layout, self.board)
        self._failed: dict[int, str] = {}

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        return self._played.reset(places, seeds)

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        self._failed = self._played.step(places, seeds)

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        del count
        return np.ones(len(places), bool), self._failed

    def worker(self, place: int) -> None:
        del place

    def close(self, places: Sequence[int] | None = None) -> None:
        self._played.close(list(self._played.envs) if places is None else places)
        if places is None:
            os.close(self._file)


def most_places(layout: Layout) -> int:
    """As many as there can be."""
    return int(min(MOST_PLACES, max(MOST_BYTES // layout.nbytes(1), 1)))
