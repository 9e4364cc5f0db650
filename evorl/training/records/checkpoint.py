"""Checkpoints with orbax: the whole state of a training, how far it has come, and the best policies so far."""

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
import numpy as np
import orbax.checkpoint as ocp

from evorl import tree
from evorl.errors import OptionError, to_printable
from evorl.replay.state_replays import join_replays, split_replays
from evorl.training.records import files
from evorl.types import State

STRUCTURE_ERROR = "tree structures do not match"  # what orbax says where the leaves are the same
EMPTY_NODES = ("None", "Dict", "List", "Tuple", "NamedTuple")  # what orbax calls nodes without leaves
SCHEMA = 2  # of what a checkpoint holds; another one is refused
OLD_SUFFIX = ".replaced"  # ends the name of a checkpoint while another one of its iteration is written
# orbax 0.12 adds this to the arrays, measured on ext4 for states of 1 to 1000 leaves: an item has 5 folders, 7 files
# and 2 to 16 files of data, in blocks of 4 kB; a leaf has 0.6 to 0.9 kB of metadata, more where its path is longer;
# around the items are 2 folders and 4 files. tests/test_host.py compares the sum with what is on disk.
BLOCK, BLOCKS_PER_ITEM, BLOCKS_AROUND, BYTES_PER_LEAF = 4096, 28, 6, 1024
T = TypeVar("T")


class Checkpoints:
    """The newest `keep` checkpoints in a folder, one every `minutes` and one at the end, written in the background.

    <folder>/<iteration>/ holds state (all but replays), best (the same as it was at each run's best evaluation),
    progress, and replay: of the newest one only, or of none where not `replay`, and then a resumed run fills a new one.
    Where the newest one is damaged, which report is told, the one before it is read. What was left half-written is
    removed, but not by one that only reads: a training may be writing it.
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
        if writes:
            self._recover_replaced()
        handlers = {name: ocp.StandardCheckpointHandler() for name in ("state", "best", "replay")}
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, cleanup_tmp_directories=writes),
            item_handlers=handlers | {"progress": ocp.JsonCheckpointHandler()},
        )
        self._keep, self._replay, self._seconds, self._report = keep, replay, 60 * minutes, report
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self._saved = time.perf_counter()
        self._rows: Any = None  # of the newest checkpoint's progress

    @property
    def latest_iteration(self) -> int | None:
        """The iteration of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def check_disk_space(self, shapes: State) -> None:
        """Reports what checkpoints of a state will take; raises OptionError where the disk has less."""
        replays = split_replays(shapes)[1]
        whole, replay = estimate_disk_size(shapes, self._replay), estimate_item_size(replays) if self._replay else 0
        free = shutil.disk_usage(self.folder).free
        needed = (self._keep + 1) * (whole - replay) + 2 * replay  # the last ones go when the next one is whole
        if needed > free:
            hint = ", or checkpoint.replay=false" if replay else ""
            raise OptionError(
                f"run_dir={self.folder.parent}: checkpoints take {format_bytes(needed)} "
                f"and {format_bytes(free)} are free; give a run_dir with more{hint}"
            )
        held = f", {format_bytes(replay)} of it replay" if replay else ""
        if tree.nbytes(replays) and not replay:
            held = ", without the replay: a resumed run fills a new one and is not bitwise the same"
        self._report(f"a checkpoint takes up to {format_bytes(whole)}{held}; {format_bytes(free)} are free")

    def is_due(self) -> bool:
        """Whether it is time to save; removes what is not to be kept."""
        if not self._manager.is_saving_in_progress():
            self._prune_replays()
        return time.perf_counter() - self._saved > self._seconds

    def save(self, iteration: int, state: State, best: State, progress: dict[str, Any]) -> None:
        """Return once the state is copied, which the next chunk takes over; writing goes on in the background.

        A checkpoint of the same iteration is replaced where it knows of fewer rows: its last evaluation was to come.
        """
        rows = progress.get("row_counts")
        if iteration != self.latest_iteration or rows != self._rows:
            light, replays = split_replays(state)
            if not self._replay:
                replays = None
            if jax.default_backend() == "cpu":  # where orbax takes no copy of its own
                light, replays = self._copy((light, replays))
            items = {"state": light, "best": best} | ({"replay": replays} if jax.tree.leaves(replays) else {})
            progress = progress | {
                "schema": SCHEMA,
                "digests": {name: compute_digest(item) for name, item in items.items()},
            }
            progress["digest"] = _compute_text_digest(progress)
            saved = {name: ocp.args.StandardSave(_drop_empty_leaves(item)) for name, item in items.items()}
            with _explain_write_errors():
                self._manager.wait_until_finished()
                self._prune_replays()  # so that never more than two replays are on disk
                if self._get_path(iteration).is_dir():
                    self._get_path(iteration).rename(self.folder / f"{iteration}{OLD_SUFFIX}")
                    self._manager.reload()
                self._manager.save(iteration, args=ocp.args.Composite(progress=ocp.args.JsonSave(progress), **saved))
            self._rows = rows
        self._saved = time.perf_counter()

    def restore(self, shapes: State) -> tuple[State, State, dict[str, Any]]:
        """The newest state that is whole, like shapes (jax.eval_shape), the best one, and the progress.

        Newer ones are renamed. Replays that were not saved come back empty.
        """
        light, replays = split_replays(shapes)

        def read_step(step: int) -> tuple[int, State, State, dict[str, Any]]:
            progress = self._read_progress(step)
            digests = progress.pop("digests")
            state, best = (self._read_item(step, name, light, digests) for name in ("state", "best"))
            if "replay" in digests and self._get_path(step, "replay").is_dir():
                return step, join_replays(state, self._read_item(step, "replay", replays, digests)), best, progress
            if "replay" in digests:
                self._report(f"the checkpoint of iteration {step} has no replay any more: going on is not bitwise")
            return step, join_replays(state, tree.zeros_like(replays)), best, progress

        newest, *found = self._read_newest(read_step)
        for step in self._manager.all_steps():
            if step > newest:
                damaged = self.folder / str(step)
                damaged.rename(damaged.with_suffix(f".damaged-{time.time_ns()}"))
        self._manager.reload()
        self._rows = copy.copy(found[2].get("row_counts"))
        return found[0], found[1], found[2]

    def restore_policy(self, shapes: State, which: str = "best") -> tuple[State, dict[str, Any]]:
        """The newest state without replays, as it is at the `last` step or as it was at the best evaluations; progress.

        shapes are those of the state.
        """
        item, light = {"best": "best", "last": "state"}[which], split_replays(shapes)[0]

        def read_step(step: int) -> tuple[State, dict[str, Any]]:
            progress = self._read_progress(step)
            return self._read_item(step, item, light, progress.pop("digests")), progress

        return self._read_newest(read_step)

    def close(self) -> None:
        """Waits until what is being written is on disk."""
        with _explain_write_errors():
            self._manager.wait_until_finished()
            self._prune_replays()
            self._manager.close()

    def _read_newest(self, read: Callable[[int], T]) -> T:
        """What read gives of the newest checkpoint that is whole; reports those that are not."""
        self._manager.wait_until_finished()
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                return read(step)
            except OptionError:  # whole, but of something else
                raise
            except Exception as error:  # each of orbax's readers raises its own
                problem = str(error).strip().partition("\n")[0] or type(error).__name__
                self._report(f"the checkpoint of iteration {step} is damaged ({problem:.200}); trying the one before")
        raise OptionError(f"{self.folder}: no checkpoint is whole")

    def _read_progress(self, step: int) -> dict[str, Any]:
        progress = json.loads(files.read_text(self._get_path(step, "progress", "metadata")))
        if progress.pop("digest") != _compute_text_digest(progress):
            raise ValueError("its progress is not what was written")
        if progress.pop("schema") != SCHEMA:
            raise OptionError(f"{self._get_path(step)}: was written by another version of evorl")
        return progress

    def _read_item(self, step: int, item: str, shapes: State, digests: dict[str, int]) -> State:
        """An item; raises OptionError where its leaves are not those of shapes, ValueError where they have changed."""
        manager: Any = self._manager
        solid = _drop_empty_leaves(shapes)
        self._require_leaf_names(step, item, get_leaf_shapes(shapes))
        leaves = jax.tree.leaves(manager.item_metadata(step)[item])
        saved = {leaf.name: tuple(leaf.shape) for leaf in leaves}
        if not saved:
            raise ValueError(f"its {item} is not there")
        require_same_shapes(f"the checkpoint of iteration {step}", saved, solid)
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), solid)
        wanted = ocp.args.Composite(**{item: ocp.args.StandardRestore(like)})
        try:
            found = manager.restore(step, args=wanted)[item]
        except ValueError as error:
            if STRUCTURE_ERROR not in str(error):
                raise
            raise OptionError(f"{self._get_path(step)}: was written by another version of evorl") from error
        if compute_digest(found) != digests[item]:
            raise ValueError(f"its {item} is not what was written")
        stored = iter(jax.tree.leaves(found))
        return jax.tree.map(lambda x: next(stored) if x.size else jnp.zeros(x.shape, x.dtype), shapes)

    def _require_leaf_names(self, step: int, item: str, known: Container[str]) -> None:
        """Raise OptionError where orbax would open a leaf that is none of the state, ValueError where a name is off."""
        stored = json.loads(files.read_text(self._get_path(step, item, "_METADATA")))["tree_metadata"]
        for path, one in stored.items():
            keys = tuple(str(key["key"]) for key in one["key_metadata"])
            if path != str(keys):  # orbax writes a name twice
                raise ValueError(f"its {item} has two names for a leaf")
            name = ".".join(keys)
            if one["value_metadata"]["value_type"] not in EMPTY_NODES and name not in known:
                problem = f"does not fit this configuration, which has no {to_printable(name)}"
                raise OptionError(f"the checkpoint of iteration {step} {problem}")

    def _get_path(self, step: int, *item: str) -> Path:
        return self.folder.joinpath(str(step), *item)

    def _recover_replaced(self) -> None:
        """Remove checkpoints that were replaced; put back those whose replacement was not written."""
        for replaced in self.folder.glob(f"*{OLD_SUFFIX}"):
            if replaced.with_suffix("").is_dir():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(replaced.with_suffix(""))

    def _prune_replays(self) -> None:
        """Removes the replays of all but the newest checkpoint on disk; the manager counts those that failed too."""
        self._recover_replaced()
        whole = sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())
        for step in whole[:-1]:
            shutil.rmtree(self._get_path(step, "replay"), ignore_errors=True)


@contextmanager
def _explain_write_errors() -> Iterator[None]:
    """Says in one line why a checkpoint was not written, as OSError; what orbax raises depends on where it was."""
    try:
        yield
    except Exception as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        reason = os.strerror(int(code[1])) if code else str(error).partition("\n")[0]
        raise OSError(f"a checkpoint could not be written: {reason:.200}") from error


def compute_digest(state: State) -> int:
    """A checksum (CRC-32) of all leaves, as they lie in memory."""
    checksum = 0
    for leaf in jax.tree.leaves(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        checksum = zlib.crc32(np.ascontiguousarray(jax.device_get(leaf)).data, checksum)
    return checksum


def _compute_text_digest(progress: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(progress, sort_keys=True).encode())


def estimate_item_size(state: State) -> int:
    """Return the most bytes that an item of a checkpoint takes on disk, files and folders included."""
    leaves = len(jax.tree.leaves(state))
    return tree.nbytes(state) + BLOCK * BLOCKS_PER_ITEM + BYTES_PER_LEAF * leaves if leaves else 0


def estimate_disk_size(shapes: State, replay: bool = True) -> int:
    """Return the most bytes that a checkpoint of a state takes on disk, with its replay or without."""
    light, replays = split_replays(shapes)
    return BLOCK * BLOCKS_AROUND + 2 * estimate_item_size(light) + (estimate_item_size(replays) if replay else 0)


def _drop_empty_leaves(state: State) -> State:
    """state without leaves of no element, which orbax does not write."""
    return jax.tree.map(lambda x: x if x.size else None, state)


def get_leaf_shapes(state: State) -> dict[str, tuple[int, ...]]:
    """The shapes of all leaves, of arrays or of their shapes, by dotted name; of a key those of its data."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = tuple(leaf.shape)
    return found


def require_same_shapes(what: str, found: dict[str, tuple[int, ...]], shapes: State) -> None:
    """Raises OptionError, naming the first leaf, where the leaves found are not those of shapes."""
    wanted = get_leaf_shapes(shapes)
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            has, needs = (list(x[name]) if name in x else "nothing" for x in (found, wanted))
            raise OptionError(f"{what} does not fit this configuration: its {name} is {has}, not {needs}")


def format_bytes(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
