"""Checkpoints with orbax: the whole state of a training, how far it has come, and the best policies so far."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from evorl import tree
from evorl.errors import OptionError
from evorl.replay import Replay
from evorl.types import State

SCHEMA = 1  # of what a checkpoint holds; another one is refused


class Checkpoints:
    """The newest `keep` checkpoints in a folder, one every `minutes` and one at the end, written in the background.

    <folder>/<iteration>/ holds state (all but replays), best (the same as it was at each run's best evaluation),
    progress, and replay: of the newest one only, or of none where not `replay`, and then a resumed run fills a new one.
    """

    def __init__(
        self,
        folder: Path,
        minutes: float = 10.0,
        keep: int = 2,
        replay: bool = True,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder = Path(folder).absolute()
        handlers = {name: ocp.StandardCheckpointHandler() for name in ("state", "best", "replay")}
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
            item_handlers=handlers | {"progress": ocp.JsonCheckpointHandler()},
        )
        self._keep, self._replay, self._seconds, self._report = keep, replay, 60 * minutes, report
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self._saved = time.perf_counter()

    @property
    def latest(self) -> int | None:
        """The iteration of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def begin(self, shapes: State) -> None:
        """Reports what checkpoints of a state will take; raises OptionError where the disk has less."""
        light, replays = split(shapes)
        policy, replay = tree.nbytes(light), tree.nbytes(replays) if self._replay else 0
        free = shutil.disk_usage(self.folder).free
        needed = 2 * (self._keep * policy + replay)  # the last ones go when the next one is whole
        if needed > free:
            hint = ", or checkpoint.replay=false" if replay else ""
            raise OptionError(
                f"run_dir={self.folder.parent}: checkpoints take {size(needed)} and {size(free)} are free; "
                f"give a run_dir with more{hint}"
            )
        held = f", {size(replay)} of it replay" if replay else ""
        if tree.nbytes(replays) and not replay:
            held = ", without the replay: a resumed run fills a new one and is not bitwise the same"
        self._report(f"a checkpoint takes up to {size(2 * policy + replay)}{held}; {size(free)} are free")

    def due(self) -> bool:
        if not self._manager.is_saving_in_progress():
            self._prune()
        return time.perf_counter() - self._saved > self._seconds

    def save(self, iteration: int, state: State, best: State, progress: dict[str, Any]) -> None:
        """Returns once the state is copied, which the next chunk takes over; writing goes on in the background."""
        if iteration != self.latest:
            light, replays = split(state)
            if not self._replay:
                replays = ()
            if jax.default_backend() == "cpu":  # where orbax takes no copy of its own
                light, replays = self._copy((light, replays))
            items = {"state": light, "best": best} | ({"replay": replays} if jax.tree.leaves(replays) else {})
            saved = {name: ocp.args.StandardSave(item) for name, item in items.items()}
            progress = progress | {"schema": SCHEMA}
            self._manager.save(iteration, args=ocp.args.Composite(progress=ocp.args.JsonSave(progress), **saved))
        self._saved = time.perf_counter()

    def restore(self, shapes: State) -> tuple[State, State, dict[str, Any]]:
        """The newest state, which must be like shapes (jax.eval_shape), the best one, and the progress.

        Replays that were not saved come back empty.
        """
        light, replays = split(shapes)
        progress = self.progress()
        state, best = self._restore("state", light), self._restore("best", light)
        stored = self.folder / str(self.latest) / "replay"
        replays = self._restore("replay", replays) if stored.is_dir() else tree.zeros(replays)
        return join(state, replays), best, progress

    def progress(self) -> dict[str, Any]:
        """The newest progress."""
        progress = self._restore("progress", None)
        if progress.pop("schema", None) != SCHEMA:
            raise OptionError(f"{self.folder}: was written by another version of evorl")
        return progress

    def restore_policy(self, shapes: State, which: str = "best") -> State:
        """The newest state without replays, as it is at the `last` step or as it was at the best evaluations."""
        return self._restore({"best": "best", "last": "state"}[which], split(shapes)[0])

    def close(self) -> None:
        """Waits until what is being written is on disk."""
        self._manager.wait_until_finished()
        self._prune()
        self._manager.close()

    def _restore(self, item: str, shapes: Any) -> Any:
        if shapes is None:
            wanted = ocp.args.JsonRestore()
        else:
            self._compare(item, shapes)
            device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
            wanted = ocp.args.StandardRestore(like)
        return self._manager.restore(self.latest, args=ocp.args.Composite(**{item: wanted}))[item]

    def _compare(self, item: str, shapes: Any) -> None:
        """Raises OptionError where the saved leaves are not those of shapes, naming the first."""
        manager: Any = self._manager
        leaves = jax.tree.leaves(manager.item_metadata(self.latest)[item])
        saved = {leaf.name: tuple(leaf.shape) for leaf in leaves}
        check_fit(f"the checkpoint of iteration {self.latest}", saved, shapes)

    def _prune(self) -> None:
        """Removes the replays of all but the newest checkpoint."""
        for step in self._manager.all_steps():
            if step != self.latest:
                shutil.rmtree(self.folder / str(step) / "replay", ignore_errors=True)


def leaf_shapes(state: State) -> dict[str, tuple[int, ...]]:
    """The shapes of all leaves, of arrays or of their shapes, by dotted name; of a key those of its data."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = tuple(leaf.shape)
    return found


def check_fit(what: str, found: dict[str, tuple[int, ...]], shapes: State) -> None:
    """Raises OptionError, naming the first leaf, where the leaves found are not those of shapes."""
    wanted = leaf_shapes(shapes)
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            has, needs = (list(x[name]) if name in x else "nothing" for x in (found, wanted))
            raise OptionError(f"{what} does not fit this configuration: its {name} is {has}, not {needs}")


def split(state: State) -> tuple[State, list[Replay]]:
    """The state with its replays hollowed out, without a leaf, and these in order."""
    leaves, treedef = jax.tree.flatten(state, is_leaf=_is_replay)
    hollow = [replace(x, tables=(), position=(), size=()) if _is_replay(x) else x for x in leaves]
    return treedef.unflatten(hollow), [x for x in leaves if _is_replay(x)]


def join(state: State, replays: list[Replay]) -> State:
    """The state with replays in the places that split took them from."""
    given = iter(replays)
    return jax.tree.map(lambda x: next(given) if _is_replay(x) else x, state, is_leaf=_is_replay)


def _is_replay(x: Any) -> bool:
    return isinstance(x, Replay)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
