"""Checkpoints with orbax: the complete state of a training, its progress, and the best policies so far."""

import copy
import json
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from evorl import tree
from evorl.errors import OptionError, to_printable
from evorl.replay.state_replays import join_replays, split_replays
from evorl.training import processes
from evorl.training.records import checksums, files
from evorl.types import State

STRUCTURE_ERROR = "tree structures do not match"  # orbax's message if the structures differ but the leaves are equal
EMPTY_NODES = ("None", "Dict", "List", "Tuple", "NamedTuple")  # orbax's names of nodes without leaves
SCHEMA = 3  # version of the checkpoint format; others are refused
OLD_SUFFIX = ".replaced"  # suffix of a checkpoint while its replacement is written
# Overhead of orbax 0.12 besides the arrays, measured on ext4 for states of 1 to 1000 leaves: an item has 5 folders, 7
# files and 2 to 16 data files, in blocks of 4 kB; a leaf has 0.6 to 0.9 kB of metadata, more if its path is longer;
# a checkpoint adds 2 folders and 4 files. tests/test_host.py compares the sum with the size on disk.
BLOCK, BLOCKS_PER_ITEM, BLOCKS_AROUND, BYTES_PER_LEAF = 4096, 28, 6, 1024
T = TypeVar("T")


class Checkpoints:
    """The newest `keep` checkpoints in a folder, written every `minutes` and at the end.

    A checkpoint is a folder <folder>/<iteration>/ with these items:

    - state: the state without replay buffers
    - best: the same, from the best evaluation of each run
    - progress: the progress of the training
    - replay: the replay buffers, only in the newest checkpoint. Without `replay`, they are not saved, and a
      resumed run fills new ones.

    If the newest checkpoint is damaged, the previous one is read, and `report` is called with a message. With
    `writes`, incomplete checkpoints are removed. A reader must not remove them, since a training may be
    writing them.
    """

    def __init__(
        self,
        folder: Path,
        minutes: float = 10.0,
        keep: int = 2,
        replay: bool = True,
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
        writes: bool = True,
    ) -> None:
        self.folder = Path(folder).absolute()
        if writes and processes.is_first():
            self._recover_replaced()
        processes.synchronize("open checkpoints")
        handlers = {name: ocp.StandardCheckpointHandler() for name in ("state", "best", "replay")}
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=True,
                cleanup_tmp_directories=writes,
                enable_async_checkpointing=jax.default_backend() != "cpu",
            ),
            item_handlers=handlers | {"progress": ocp.JsonCheckpointHandler()},
        )
        self._keep, self._replay, self._seconds, self._report = keep, replay, 60 * minutes, report
        self._saved = time.perf_counter()
        self._rows: Any = None  # row counts in the progress of the newest checkpoint

    @property
    def latest_iteration(self) -> int | None:
        """Return the iteration of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def check_disk_space(self, shapes: State) -> None:
        """Report the size of checkpoints of a state; raise OptionError if they do not fit on the disk."""
        replays = split_replays(shapes)[1]
        whole, replay = estimate_disk_size(shapes, self._replay), estimate_item_size(replays) if self._replay else 0
        free = shutil.disk_usage(self.folder).free
        needed = (self._keep + 1) * (whole - replay) + 2 * replay  # one more while the next one is written
        if needed > free:
            hint = ", or checkpoint.replay=false" if replay else ""
            raise OptionError(
                f"run_dir={self.folder.parent}: checkpoints need {format_bytes(needed)} "
                f"and {format_bytes(free)} are free; use a run_dir on a larger disk{hint}"
            )
        held = f", {format_bytes(replay)} of it for the replay buffer" if replay else ""
        if tree.nbytes(replays) and not replay:
            held = ", without the replay buffer: a resumed run refills it and is not bitwise identical"
        self._report(f"a checkpoint takes up to {format_bytes(whole)}{held}; {format_bytes(free)} are free")

    def is_due(self) -> bool:
        """Return whether it is time to save, and remove replay buffers that are no longer needed."""
        if not self._manager.is_saving_in_progress():
            self._prune_replays()
        return processes.agreed(time.perf_counter() - self._saved > self._seconds)

    def save(self, iteration: int, state: State, best: State, progress: dict[str, Any]) -> None:
        """Save a checkpoint; return once the next chunk may overwrite the state.

        Accelerators copy the state to the host, where it is written in the background. On a CPU, the state is
        not copied, and this function returns when it is written.

        If there is a checkpoint of the same iteration with other row counts, it is replaced: it was saved
        before the last evaluation. With equal row counts, nothing is saved.
        """
        rows = progress.get("row_counts")
        if iteration != self.latest_iteration or rows != self._rows:
            light, replays = split_replays(state)
            if not self._replay:
                replays = None
            items = {"state": light, "best": best} | ({"replay": replays} if jax.tree.leaves(replays) else {})
            progress = progress | {
                "schema": SCHEMA,
                "digests": {name: checksums.compute_checksum(item) for name, item in items.items()},
            }
            progress["digest"] = _compute_text_digest(progress)
            saved = {name: ocp.args.StandardSave(_drop_empty_leaves(item)) for name, item in items.items()}
            with _explain_write_errors():
                self._manager.wait_until_finished()
                self._prune_replays()  # keeps at most two replay buffers on disk
                if processes.agreed(self._get_path(iteration).is_dir()):
                    if processes.is_first():
                        self._get_path(iteration).rename(self.folder / f"{iteration}{OLD_SUFFIX}")
                    processes.synchronize("replace checkpoint")
                    self._manager.reload()
                self._manager.save(iteration, args=ocp.args.Composite(progress=ocp.args.JsonSave(progress), **saved))
            self._rows = rows
        self._saved = time.perf_counter()

    def restore(self, shapes: State, init: Callable[[], State] | None = None) -> tuple[State, State, dict[str, Any]]:
        """Return the state, the best state and the progress of the newest undamaged checkpoint.

        The states have the structure of `shapes` (from `jax.eval_shape`), and its shardings if it has any.
        Newer, damaged checkpoints are renamed.

        Args:
            shapes: Shapes of the state.
            init: Function that returns a new state, whose replay buffers take the place of those that were
                not saved.

        Raises:
            OptionError: The checkpoint does not match the shapes, or has no replay buffer and `init` is None.
        """
        light, replays = split_replays(shapes)

        def read_step(step: int) -> tuple[int, State, State, dict[str, Any]]:
            progress = self._read_progress(step)
            digests = progress.pop("digests")
            state, best = (self._read_item(step, name, light, digests) for name in ("state", "best"))
            if "replay" in digests and self._get_path(step, "replay").is_dir():
                return step, join_replays(state, self._read_item(step, "replay", replays, digests)), best, progress
            if "replay" in digests:
                self._report(
                    f"the checkpoint of iteration {step} has lost its replay buffer: resuming is not bitwise identical"
                )
            if not replays:
                return step, state, best, progress
            if init is None:
                raise OptionError(f"checkpoint={step}: has no replay buffer, and no function `init` to make one")
            return step, join_replays(state, split_replays(init())[1]), best, progress

        newest, *found = self._read_newest(read_step)
        for step in self._manager.all_steps():
            if step > newest:
                damaged = self.folder / str(step)
                damaged.rename(damaged.with_suffix(f".damaged-{time.time_ns()}"))
        self._manager.reload()
        self._rows = copy.copy(found[2].get("row_counts"))
        return found[0], found[1], found[2]

    def restore_policy(self, shapes: State, which: str = "best") -> tuple[State, dict[str, Any]]:
        """Return the state without replay buffers, and the progress, of the newest undamaged checkpoint.

        `which` selects the state of the "last" step, or of the "best" evaluation of each run. `shapes` are
        the shapes of the state.
        """
        item, light = {"best": "best", "last": "state"}[which], split_replays(shapes)[0]

        def read_step(step: int) -> tuple[State, dict[str, Any]]:
            progress = self._read_progress(step)
            return self._read_item(step, item, light, progress.pop("digests")), progress

        return self._read_newest(read_step)

    def close(self) -> None:
        """Wait until all checkpoints are on disk."""
        with _explain_write_errors():
            self._manager.wait_until_finished()
            self._prune_replays()
            self._manager.close()

    def _read_newest(self, read: Callable[[int], T]) -> T:
        """Return the result of `read` for the newest undamaged checkpoint, and report damaged ones."""
        self._manager.wait_until_finished()
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                return read(step)
            except OptionError:  # the checkpoint is intact, but does not match the configuration
                raise
            except Exception as error:  # orbax's readers raise many types
                problem = str(error).strip().partition("\n")[0] or type(error).__name__
                if processes.count() > 1:  # the others may have read their parts
                    again = "resume with one process, which takes the previous one"
                    raise OptionError(
                        f"the checkpoint of iteration {step} is damaged ({problem:.200}); {again}"
                    ) from error
                self._report(f"the checkpoint of iteration {step} is damaged ({problem:.200}); trying the previous one")
        raise OptionError(f"{self.folder}: all checkpoints are damaged")

    def _read_progress(self, step: int) -> dict[str, Any]:
        progress = json.loads(files.read_text(self._get_path(step, "progress", "metadata")))
        if progress.pop("digest") != _compute_text_digest(progress):
            raise ValueError("its progress does not match the checksum")
        if progress.pop("schema") != SCHEMA:
            raise OptionError(f"{self._get_path(step)}: was written by another version of evorl")
        return progress

    def _read_item(self, step: int, item: str, shapes: State, digests: dict[str, int]) -> State:
        """Read an item of a checkpoint.

        Raises:
            OptionError: The leaves do not match `shapes`.
            ValueError: The values differ from those that were written.
        """
        manager: Any = self._manager
        solid = _drop_empty_leaves(shapes)
        self._require_leaf_names(step, item, get_leaf_shapes(shapes))
        leaves = jax.tree.leaves(manager.item_metadata(step)[item])
        saved = {leaf.name: tuple(leaf.shape) for leaf in leaves}
        if not saved:
            raise ValueError(f"its {item} is missing")
        require_same_shapes(f"the checkpoint of iteration {step}", saved, solid)
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or device), solid)
        wanted = ocp.args.Composite(**{item: ocp.args.StandardRestore(like)})
        try:
            found = manager.restore(step, args=wanted)[item]
        except ValueError as error:
            if STRUCTURE_ERROR not in str(error):
                raise
            raise OptionError(f"{self._get_path(step)}: was written by another version of evorl") from error
        if checksums.compute_checksum(found) != digests[item]:
            raise ValueError(f"its {item} does not match the checksum")
        stored = iter(jax.tree.leaves(found))
        return jax.tree.map(lambda x: next(stored) if x.size else jnp.zeros(x.shape, x.dtype), shapes)

    def _require_leaf_names(self, step: int, item: str, known: Container[str]) -> None:
        """Check the leaf names of an item before orbax opens them.

        Raises:
            OptionError: A leaf is not part of the state.
            ValueError: A name is inconsistent.
        """
        stored = json.loads(files.read_text(self._get_path(step, item, "_METADATA")))["tree_metadata"]
        for path, one in stored.items():
            keys = tuple(str(key["key"]) for key in one["key_metadata"])
            if path != str(keys):  # orbax stores each name twice
                raise ValueError(f"its {item} has two names for a leaf")
            name = ".".join(keys)
            if one["value_metadata"]["value_type"] not in EMPTY_NODES and name not in known:
                problem = f"does not fit this configuration, which has no {to_printable(name)}"
                raise OptionError(f"the checkpoint of iteration {step} {problem}")

    def _get_path(self, step: int, *item: str) -> Path:
        return self.folder.joinpath(str(step), *item)

    def _recover_replaced(self) -> None:
        """Remove replaced checkpoints, and put back those whose replacement was not written."""
        for replaced in self.folder.glob(f"*{OLD_SUFFIX}"):
            if replaced.with_suffix("").is_dir():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(replaced.with_suffix(""))

    def _prune_replays(self) -> None:
        """Remove the replay buffers of all checkpoints on disk but the newest.

        The manager's own list is not used, since it also contains checkpoints that could not be written.
        """
        if not processes.is_first():
            return
        self._recover_replaced()
        whole = sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())
        for step in whole[:-1]:
            shutil.rmtree(self._get_path(step, "replay"), ignore_errors=True)


@contextmanager
def _explain_write_errors() -> Iterator[None]:
    """Convert errors of writing a checkpoint to an OSError with a one-line reason.

    The type of orbax's exception depends on where the error occurred.
    """
    try:
        yield
    except Exception as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        reason = os.strerror(int(code[1])) if code else str(error).partition("\n")[0]
        raise OSError(f"a checkpoint could not be written: {reason:.200}") from error


def _compute_text_digest(progress: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(progress, sort_keys=True).encode())


def estimate_item_size(state: State) -> int:
    """Return the maximum size of a checkpoint item on disk in bytes, including files and folders."""
    leaves = len(jax.tree.leaves(state))
    return tree.nbytes(state) + BLOCK * BLOCKS_PER_ITEM + BYTES_PER_LEAF * leaves if leaves else 0


def estimate_disk_size(shapes: State, replay: bool = True) -> int:
    """Return the maximum size of a checkpoint on disk in bytes, with or without replay buffers."""
    light, replays = split_replays(shapes)
    return BLOCK * BLOCKS_AROUND + 2 * estimate_item_size(light) + (estimate_item_size(replays) if replay else 0)


def _drop_empty_leaves(state: State) -> State:
    """Return the state without leaves of size 0, which orbax does not write."""
    return jax.tree.map(lambda x: x if x.size else None, state)


def get_leaf_shapes(state: State) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all leaves by dotted name; for a random key, the shape of its data.

    The leaves are arrays or their shapes.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = tuple(leaf.shape)
    return found


def require_same_shapes(what: str, found: dict[str, tuple[int, ...]], shapes: State, remedy: str = "") -> None:
    """Raise OptionError if the shapes differ from those of `shapes`; the message names the first such leaf."""
    wanted = get_leaf_shapes(shapes)
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            has, needs = (list(x[name]) if name in x else "nothing" for x in (found, wanted))
            raise OptionError(f"{what} does not fit this configuration: its {name} is {has}, not {needs}{remedy}")


def format_bytes(count: float) -> str:
    """Format a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
