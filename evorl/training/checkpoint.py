"""Checkpoints with orbax: the whole state of a training and how far it has come."""

import time
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from evorl.errors import OptionError
from evorl.types import State


class Checkpoints:
    """The newest `keep` checkpoints in a folder, one every `minutes` and one at the end."""

    def __init__(self, folder: Path, minutes: float = 10.0, keep: int = 1) -> None:
        self._manager = ocp.CheckpointManager(
            Path(folder).absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        )
        self._seconds = 60 * minutes
        self._saved = time.perf_counter()

    @property
    def latest(self) -> int | None:
        """The iteration of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def due(self) -> bool:
        return time.perf_counter() - self._saved > self._seconds

    def save(self, iteration: int, state: State, progress: dict[str, Any]) -> None:
        """Returns once it is on disk: the next chunk takes over the state's memory."""
        if iteration != self.latest:
            saved = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress))
            self._manager.save(iteration, args=saved)
            self._manager.wait_until_finished()
        self._saved = time.perf_counter()

    def restore(self, shapes: State) -> tuple[State, dict[str, Any]]:
        """The newest state, which must be like shapes (jax.eval_shape), and its progress."""
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
        wanted = ocp.args.Composite(state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore())
        try:
            found = self._manager.restore(self.latest, args=wanted)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            message = f"the checkpoint of iteration {self.latest} does not fit this configuration: {reason}"
            raise OptionError(message) from error
        return found["state"], found["progress"]

    def close(self) -> None:
        self._manager.close()
