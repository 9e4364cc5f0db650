"""A sweep while it runs: its workers, each a process, and a line for each trial that ends."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evorl.errors import OptionError
from evorl.machine import count_cores
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.space import format_value, shorten_name
from evorl.sweeps.store import MAX_DEATHS, SweepStore
from evorl.sweeps.trials import DONE, FAILED, RUNNING, STOPPED, SweepTrial
from evorl.training.records import files
from evorl.training.stopping import StopHandler

INTERRUPT_EXIT_CODE = 130  # the exit code after a signal that asks to save
MAX_LOSSES = 2 * MAX_DEATHS  # of workers in a row, in each place, after which a sweep ends
POLL_SECONDS = 0.3  # seconds between two looks at the store
GRACE_SECONDS = 600  # seconds that workers have to save, before they are killed
MODULE = "evorl.sweeps.worker"


class WorkerPool:
    """The processes of a sweep; a core or more each where there are enough. Their signals are ours to hand on."""

    def __init__(self, folder: Path, most: int, trust: Sequence[str]) -> None:
        self._folder, self._most, self._trust = folder, most, trust
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.losses: list[tuple[int, int]] = []  # the place and the exit code of each that was killed or has failed

    def __len__(self) -> int:
        return len(self._processes)

    def poll_workers(self) -> None:
        """Forgets those that have ended; notes those that were killed or have failed."""
        for place, process in list(self._processes.items()):
            if (code := process.poll()) is not None:
                del self._processes[place]
                assert process.stdin is not None
                process.stdin.close()
                if code not in (0, INTERRUPT_EXIT_CODE):
                    self.losses.append((place, code))

    def start(self, wanted: int) -> None:
        """So many more, as far as there is room."""
        for place in range(self._most):
            if wanted and place not in self._processes:
                self._processes[place] = self._start_worker(place)
                wanted -= 1

    def _start_worker(self, place: int) -> subprocess.Popen[bytes]:
        log = self.log_path(place).open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(self._folder), *self._trust],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that Ctrl-C is for us alone
            env={"OPENBLAS_NUM_THREADS": "1"} | os.environ,  # whose threads wait at full speed where cores are shared
        )
        log.close()
        if hasattr(os, "sched_setaffinity") and count_cores() >= self._most > 1:
            with suppress(OSError):
                os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[place :: self._most])
        return process

    def log_path(self, place: int) -> Path:
        """What a worker has said."""
        return self._folder / f"worker-{place}.log"

    def describe_exit(self, place: int, code: int) -> str:
        """How a worker has ended, in words."""
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        lines = files.read_tail(self.log_path(place)).split("\n")
        last = next((line for line in reversed(lines) if line), "it said nothing")
        return f"has failed: {last:.300}"

    def stop(self) -> None:
        """Asks all to save and end."""
        for process in self._processes.values():
            process.terminate()

    def kill(self) -> None:
        """Ends all where they stand."""
        for process in self._processes.values():
            process.kill()


def run_sweep(
    store: SweepStore, definition: SweepDefinition, workers: int, say: Callable[[str], None], trust: Sequence[str] = ()
) -> bool:
    """Start workers until all trials have ended. Those that are killed or fail are replaced.

    Args:
        store: of the sweep.
        definition: of the sweep.
        workers: processes at a time.
        say: takes a line about each trial that ends.
        trust: packages whose classes the definition may name.

    Returns:
        Whether it was stopped before.

    Raises:
        OptionError: where MAX_LOSSES workers in each place were lost in a row, and no trial was trained in between.
        KeyboardInterrupt: at a second signal.
    """
    pool, told = (
        WorkerPool(store.folder, workers, trust),
        {one.number for one in store.read_trials() if one.state != RUNNING},
    )
    losses = 0  # in a row
    with StopHandler() as stopping:
        try:
            while store.has_active_owner() and not stopping():  # by workers whose parent has died, which save and end
                time.sleep(POLL_SECONDS)
            while not _is_finished(store, pool) and not stopping():
                pool.poll_workers()
                trials = store.read_trials()
                new = report_trials(trials, told, definition, say)
                if any(one.number in new and one.state in (DONE, STOPPED) for one in trials):
                    losses = 0
                for lost in pool.losses:
                    losses += 1
                    if losses >= MAX_LOSSES * workers:
                        raise OptionError(
                            f"{losses} workers were lost in a row; the last one {pool.describe_exit(*lost)}; "
                            f"{pool.log_path(lost[0])} has more"
                        )
                    say(f"a worker {pool.describe_exit(*lost)}; another one takes its place")
                pool.losses.clear()
                if len(pool) < workers:
                    pool.start(min(workers - len(pool), store.count_remaining(store.settings["trials"])))
                time.sleep(POLL_SECONDS)
            _stop_workers(pool)
        except BaseException:
            pool.kill()
            raise
        report_trials(store.read_trials(), told, definition, say)
        return not _is_finished(store, pool)


def _is_finished(store: SweepStore, pool: WorkerPool) -> bool:
    """Whether all trials have ended and all workers left."""
    trials = store.read_trials()
    ended = len(trials) >= store.settings["trials"] and all(one.state != RUNNING for one in trials)
    pool.poll_workers()
    return ended and not len(pool)


def _stop_workers(pool: WorkerPool) -> None:
    """Waits until workers have saved."""
    pool.stop()
    deadline = time.monotonic() + GRACE_SECONDS
    while len(pool) and time.monotonic() < deadline:
        pool.poll_workers()
        time.sleep(POLL_SECONDS / 3)
    pool.kill()


def report_trials(
    trials: Sequence[SweepTrial], told: set[int], definition: SweepDefinition, say: Callable[[str], None]
) -> set[int]:
    """Says of each trial that has ended since how, and what is best; adds them to told, and returns their numbers."""
    new = [one for one in trials if one.state != RUNNING and one.number not in told]
    top = find_best_trial([one for one in trials if one.number in told]) if new else None
    for trial in new:
        told.add(trial.number)
        top = find_best_trial([trial] if top is None else [top, trial])
        line = f"trial {trial.number}: {describe_trial(trial, definition)}"
        if top is not None:
            line += f"; best {top.score:,.6g}, trial {top.number}"
        say(line)
    return {one.number for one in new}


def describe_trial(trial: SweepTrial, definition: SweepDefinition) -> str:
    """What came of a trial, in words."""
    if trial.state == FAILED:
        return f"failed: {trial.message:.200}"
    found = f"{definition.score} {trial.score:,.6g} at {trial.cost:,.6g} {definition.cost}"
    return f"stopped, {found}" if trial.state == STOPPED else found


def find_best_trial(trials: Sequence[SweepTrial]) -> SweepTrial | None:
    """The one with the highest score at its end, the cheapest of equals; None where no score is a number."""
    sound = [one for one in trials if one.state != RUNNING and math.isfinite(one.score)]
    return max(sound, key=lambda one: (one.score, -one.cost), default=None)


def format_values(values: Mapping[str, Any]) -> str:
    """Return the values of a trial, by their shortest names."""
    return ", ".join(f"{shorten_name(name)} {format_value(value)}" for name, value in values.items())
