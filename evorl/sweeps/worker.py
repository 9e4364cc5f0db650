"""Worker process of a sweep, which trains one trial after another, until none is left.

`evorl.sweep` starts it as `python -m evorl.sweeps.worker SWEEP [PACKAGE ...]`. It ends when its standard
input ends.
"""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from evorl.command import command
from evorl.sweeps import trial_training
from evorl.sweeps.definition import open_sweep
from evorl.sweeps.trial_batch import TrialBatch
from evorl.sweeps.trials import SweepTrial
from evorl.training.devices import enable_compilation_cache
from evorl.training.stopping import StopHandler


def run_worker(folder: Path, trust: Sequence[str], stopping: StopHandler) -> None:
    """Train the remaining trials of a sweep, whose definition may name classes of the packages in `trust`."""
    store, definition = open_sweep(folder, trust, "resume")
    settings = store.settings
    sampler, space, before = definition.build_sampler(), definition.space, None
    get_program_key = definition.get_program_key
    with store.register_owner() as owner:

        def claim_trials() -> list[SweepTrial]:
            return [] if stopping() else store.claim_trials(owner, settings["vmapped"], space, sampler)

        while trials := claim_trials():
            shape = get_program_key(trials[0].values)
            if before not in (None, shape):
                jax.clear_caches()  # programs of other shapes will hardly be needed again
            before = shape
            alike = [one for one in trials if get_program_key(one.values) == shape]
            if settings["vmapped"] == 1:
                trial_training.train_trial(store, definition, alike[0], stopping)
                continue
            begun = {one.number for one in alike}

            def take_matching_trial(shape: Any = shape, begun: set[int] = begun) -> SweepTrial | None:
                new = [
                    one for one in claim_trials() if one.number not in begun and get_program_key(one.values) == shape
                ]
                begun |= {one.number for one in new[:1]}
                return next(iter(new), None)

            TrialBatch(store, definition, alike, settings["side_by_side"]).train(stopping, take_matching_trial)
    store.close()


def _exit_with_parent() -> None:
    """Ask this process to save and exit when its standard input ends, which happens when its parent ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str] | None = None) -> None:
    """Run the worker process."""
    for library in ("absl", "asyncio"):  # orbax logs its progress there, and also what it raises
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    with command(arguments) as given, StopHandler() as stopping:
        _exit_with_parent()
        enable_compilation_cache()
        run_worker(Path(given[0]), given[1:], stopping)
        if stopping():
            sys.exit(130)


if __name__ == "__main__":
    main()
