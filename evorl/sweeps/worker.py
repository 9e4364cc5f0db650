"""Worker process of a sweep, which trains one trial after another, until none is left.

`evorl.sweep` starts it as `python -m evorl.sweeps.worker SWEEP [PACKAGE ...]`. It ends when its standard
input ends. If the environment variable EVORL_SWEEP_ADDRESS is set, the worker asks the main process there
for its trials, and otherwise it opens the database of the sweep.
"""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax

from evorl.command import command
from evorl.sweeps import trial_training
from evorl.sweeps.definition import SweepDefinition, open_sweep
from evorl.sweeps.messages import ADDRESS_VARIABLE, MainProcessAddress
from evorl.sweeps.remote_queue import connect_to_sweep, make_stop_request
from evorl.sweeps.trial_batch import TrialBatch
from evorl.sweeps.trial_queue import StoreQueue, TrialQueue
from evorl.sweeps.trials import SweepTrial
from evorl.sweeps.worker_pool import INTERRUPT_EXIT_CODE
from evorl.training.devices import enable_compilation_cache, set_deterministic_ops
from evorl.training.stopping import StopHandler


def run_worker(
    queue: TrialQueue,
    definition: SweepDefinition,
    vmapped: int,
    vectorized: bool | None,
    stopping: Callable[[], bool],
    most: int | None = None,
) -> None:
    """Train the trials of a queue, one after another or several in one program.

    Args:
        queue: Queue of trials.
        definition: Definition of the sweep.
        vmapped: Number of trials in one program.
        vectorized: Whether several trials are vmapped; None for the default of the device.
        stopping: Returns whether to save and end.
        most: Maximum number of trials; None for all.
    """
    if definition.base.get("deterministic") is True:
        set_deterministic_ops()
    before, left, get_program_key = None, sys.maxsize if most is None else most, definition.get_program_key

    def claim_trials(in_training: int = 0) -> list[SweepTrial]:
        """Return the trials of this worker, those in training included, and as many new ones as it may begin."""
        return [] if stopping() or left < 1 else queue.claim_trials(min(vmapped, in_training + left))

    while trials := claim_trials():
        shape = get_program_key(trials[0].values)
        if before not in (None, shape):
            jax.clear_caches()  # programs of other shapes will hardly be needed again
        alike = [one for one in trials if get_program_key(one.values) == shape]
        before, left = shape, left - len(alike)
        if vmapped == 1:
            trial_training.train_trial(queue, definition, alike[0], stopping)
            continue
        begun = {one.number for one in alike}

        def take_matching_trial(in_training: int, shape: Any = shape, begun: set[int] = begun) -> SweepTrial | None:
            nonlocal left
            new = [one for one in claim_trials(in_training) if one.number not in begun]
            new = [one for one in new if get_program_key(one.values) == shape]
            begun |= {one.number for one in new[:1]}
            left -= len(new[:1])
            return next(iter(new), None)

        TrialBatch(queue, definition, alike, vectorized).train(stopping, take_matching_trial)


def run_local_worker(folder: Path, trust: Sequence[str], stopping: StopHandler) -> None:
    """Train the remaining trials of a sweep on this machine, whose database this process opens."""
    store, definition = open_sweep(folder, trust, "resume")
    settings = store.settings
    with closing(store), store.register_owner() as owner:
        queue = StoreQueue(store, definition, definition.build_sampler(), owner)
        run_worker(queue, definition, settings["vmapped"], settings["vectorized"], stopping)


def run_remote_worker(
    address: MainProcessAddress,
    folder: Path,
    trust: Sequence[str],
    stopping: StopHandler,
    lose: Callable[[], None],
    most: int | None = None,
) -> None:
    """Train the trials that the main process of a sweep gives to this worker; see `connect_to_sweep`."""
    with connect_to_sweep(address, folder, trust, lose) as queue:
        run_worker(queue, queue.definition, queue.vmapped, queue.vectorized, stopping, most)


def _stop_with_parent(ask_to_stop: Callable[[], None]) -> None:
    """Ask this process to save and exit when its standard input ends, which happens when its parent ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        ask_to_stop()

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def start_worker() -> Iterator[StopHandler]:
    """Prepare this process for training: signals, messages of libraries, and the compilation cache."""
    for library in ("absl", "asyncio"):  # orbax logs its progress there, and also what it raises
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    with StopHandler() as stopping:
        enable_compilation_cache()
        yield stopping
        if stopping():
            sys.exit(INTERRUPT_EXIT_CODE)


def main(arguments: list[str] | None = None) -> None:
    """Run a worker process that the main process of a sweep, or a Ray actor, has started."""
    with command(arguments) as given, start_worker() as stopping:
        folder, trust, ask_to_stop = Path(given[0]), given[1:], make_stop_request()
        _stop_with_parent(ask_to_stop)
        if ADDRESS_VARIABLE in os.environ:
            address = MainProcessAddress.from_text(os.environ[ADDRESS_VARIABLE])
            run_remote_worker(address, folder, trust, stopping, ask_to_stop)
        else:
            run_local_worker(folder, trust, stopping)


if __name__ == "__main__":
    main()
