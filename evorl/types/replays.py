"""Protocols of replay buffers."""

from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, Key, Sample


@runtime_checkable
class ReplayBuffer(Protocol):
    """Protocol of a replay buffer, an immutable pytree: `add` returns the changed buffer."""

    @property
    def size(self) -> Array:
        """Return the number of rows in the buffer, []. A row is a transition or, in a sequence replay, a sequence."""
        ...

    def add(self, rows: Any, mask: Array) -> "ReplayBuffer":
        """Add rows to the buffer.

        Args:
            rows: The next steps of each environment, leaves [steps, envs, ...].
            mask: Which rows to add, bool [steps, envs].

        Returns:
            The new buffer.
        """
        ...

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """Sample rows to learn from. The buffer must not be empty.

        Args:
            key: Random key.
            shape: Shape of the sample.

        Returns:
            The sample, leaves [*shape, ...].
        """
        ...


@runtime_checkable
class PrioritizedReplayBuffer(ReplayBuffer, Protocol):
    """Protocol of a prioritized replay buffer, whose priorities are updated from TD errors."""

    def update_priorities(self, index: Array, priority: Array) -> "PrioritizedReplayBuffer":
        """Set the priorities of rows.

        Args:
            index: Indices of the rows, as a sample returned them, int32 [...].
            priority: Absolute TD errors of the rows, shape [...]; for sequences, of each step, shape [...,
                steps].

        Returns:
            The new buffer.
        """
        ...


@runtime_checkable
class ReplayFactory(Protocol):
    """Protocol of a factory of replay buffers, with which a workflow is configured."""

    @property
    def has_sequences(self) -> bool:
        """Return whether the buffer samples sequences instead of single rows."""
        ...

    def empty(self, capacity: int, row: Any, num_envs: int = 1) -> ReplayBuffer:
        """Create an empty replay buffer.

        Args:
            capacity: Maximum number of rows.
            row: Example of a row, a pytree of arrays or of their shapes.
            num_envs: Number of environments that add rows.
        """
        ...
