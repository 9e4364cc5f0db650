"""What holds experience."""

from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, Key, Sample


@runtime_checkable
class ReplayBuffer(Protocol):
    """Experience to learn from: a pytree that changes by adding."""

    @property
    def size(self) -> Array:
        """How many rows it holds, []."""
        ...

    def add(self, rows: Any, mask: Array) -> "ReplayBuffer":
        """The replay with the rows, leaves [steps, envs, ...], where mask: what each environment did next."""
        ...

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """What to learn from, leaves [*shape, ...]; it must hold some."""
        ...


@runtime_checkable
class PrioritizedReplayBuffer(ReplayBuffer, Protocol):
    """A replay that is told of the rows that it gave how much was to be learned from them."""

    def update_priorities(self, index: Array, priority: Array) -> "PrioritizedReplayBuffer":
        """The replay with other priorities, [...], of what lies at index, int32 [...]: the sizes of their TD errors.

        Of a sequence there is one for each of its steps, [..., steps].
        """
        ...


@runtime_checkable
class ReplayFactory(Protocol):
    """Which replay a workflow has."""

    @property
    def has_sequences(self) -> bool:
        """Whether it gives sequences rather than single rows."""
        ...

    def empty(self, capacity: int, row: Any, num_envs: int = 1) -> ReplayBuffer:
        """One for `capacity` rows, from so many environments, like row, a pytree of arrays or of their shapes."""
        ...
