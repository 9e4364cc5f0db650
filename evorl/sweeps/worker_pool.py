"""Main process of a sweep, which starts worker processes and prints a line for each trial that ends."""

import math
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evorl.errors import OptionError
from evorl.machine import count_cores, limit_gpu_memory
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.space import format_value, shorten_name
from evorl.sweeps.store import MAX_DEATHS, SweepStore
from evorl.sweeps.trials import DONE, FAILED, RUNNING, STOPPED, SweepTrial
from evorl.training.records import files
from evorl.training.stopping import StopHandler

INTERRUPT_EXIT_CODE = 130  # exit code after a signal to save and exit
MAX_LOSSES = 2 * MAX_DEATHS  # consecutive losses per worker place, after which the sweep ends
POLL_SECONDS = 0.3  # interval at which the store is read
GRACE_SECONDS = 600  # time for workers to save, before they are killed
MODULE = "evorl.sweeps.worker"


class BaseWorkerPool(ABC):
    """Pool of the worker processes of a sweep, each in one of `most` places."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self.losses: list[tuple[int, int]] = []  # place and exit code of each worker that was killed or failed

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def poll_workers(self) -> None:
        """Remove the workers that have ended, and note those that were killed or failed in `losses`."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all workers to save and exit."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all workers."""

    @abstractmethod
    def _is_free(self, place: int) -> bool: ...

    @abstractmethod
    def _start_worker(self, place: int) -> None: ...

    def start(self, wanted: int) -> None:
        """Start up to `wanted` more workers, if there are free places."""
        for place in [place for place in range(self._most) if self._is_free(place)][: max(wanted, 0)]:
            self._start_worker(place)

    def log_path(self, place: int) -> Path:
        """Return the path of the output of the worker in a place."""
        return self._folder / f"worker-{place}.log"

    def describe_exit(self, place: int, code: int) -> str:
        """Describe how a worker ended."""
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        lines = files.read_tail(self.log_path(place)).split("\n")
        last = next((line for line in reversed(lines) if line), "no output")
        return f"has failed: {last:.300}"


class WorkerPool(BaseWorkerPool):
    """Pool of the worker processes of a sweep on this machine.

    Each worker has one or more CPU cores for itself if there are enough. Signals reach the workers only
    through this process.
    """

    def __init__(self, folder: Path, most: int, trust: Sequence[str]) -> None:
        super().__init__(folder, most)
        self._trust = trust
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def poll_workers(self) -> None:
        for place, process in list(self._processes.items()):
            if (code := process.poll()) is not None:
                del self._processes[place]
                assert process.stdin is not None
                process.stdin.close()
                if code not in (0, INTERRUPT_EXIT_CODE):
                    self.losses.append((place, code))

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _is_free(self, place: int) -> bool:
        return place not in self._processes

    def _start_worker(self, place: int) -> None:
        log = self.log_path(place).open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(self._folder), *self._trust],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that Ctrl-C reaches only this process
            env=make_worker_environment(self._most) | os.environ,
        )
        log.close()
        if hasattr(os, "sched_setaffinity") and count_cores() >= self._most > 1:
            with suppress(OSError):
                os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[place :: self._most])
        self._processes[place] = process


def make_worker_environment(count: int) -> dict[str, str]:
    """Return the environment variables of one of several workers that share the cores and the GPU of this machine."""
    quiet = {"OPENBLAS_NUM_THREADS": "1"}  # idle threads of OpenBLAS would busy-wait on shared cores
    return quiet | limit_gpu_memory(1 / count)


def wait_for_owners(store: SweepStore) -> None:
    """Wait until no process owns a running trial: workers whose main process has died still save and exit."""
    while store.has_active_owner():
        time.sleep(POLL_SECONDS)


def run_sweep(
    store: SweepStore,
    definition: SweepDefinition,
    workers: int,
    say: Callable[[str], None],
    trust: Sequence[str] = (),
    pool: BaseWorkerPool | None = None,
) -> bool:
    """Run workers until all trials have ended, and replace workers that are killed or fail.

    Args:
        store: Store of the sweep.
        definition: Definition of the sweep.
        workers: Number of worker processes at a time; 0 to wait for workers that others start.
        say: Function that receives a line about each trial that ends.
        trust: Packages whose classes the definition may name.
        pool: Pool that starts the workers; None for processes on this machine.

    Returns:
        True if the sweep was stopped before all trials had ended.

    Raises:
        OptionError: If MAX_LOSSES workers per place were lost in a row, while no trial made progress.
        KeyboardInterrupt: At a second signal to stop.
    """
    pool = WorkerPool(store.folder, workers, trust) if pool is None else pool
    told = {one.number for one in store.read_trials() if one.state != RUNNING}
    losses, points = 0, 0  # consecutive losses, and points of all learning curves
    with StopHandler() as stopping:
        try:
            while not _is_finished(store, pool) and not stopping():
                pool.poll_workers()
                trials = store.read_trials()
                new = report_trials(trials, told, definition, say)
                before, points = points, sum(len(one.curve) for one in trials)
                if points > before or any(one.number in new and one.state in (DONE, STOPPED) for one in trials):
                    losses = 0
                for lost in pool.losses:
                    losses += 1
                    if losses >= MAX_LOSSES * workers:
                        raise OptionError(
                            f"{losses} consecutive workers were lost; the last one {pool.describe_exit(*lost)}; "
                            f"see {pool.log_path(lost[0])}"
                        )
                    say(f"a worker {pool.describe_exit(*lost)}; it is replaced")
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


def _is_finished(store: SweepStore, pool: BaseWorkerPool) -> bool:
    """Return whether all trials have ended and all workers have exited."""
    trials = store.read_trials()
    ended = len(trials) >= store.settings["trials"] and all(one.state != RUNNING for one in trials)
    pool.poll_workers()
    return ended and not len(pool)


def _stop_workers(pool: BaseWorkerPool) -> None:
    """Ask all workers to save and exit, wait for them, and kill those that take too long."""
    pool.stop()
    deadline = time.monotonic() + GRACE_SECONDS
    while len(pool) and time.monotonic() < deadline:
        pool.poll_workers()
        time.sleep(POLL_SECONDS / 3)
    pool.kill()


def report_trials(
    trials: Sequence[SweepTrial], told: set[int], definition: SweepDefinition, say: Callable[[str], None]
) -> set[int]:
    """Print a line for each trial that has ended since the last call, and return the numbers of these trials.

    The line includes the best trial so far. The numbers are added to `told`.
    """
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
    """Describe the result of a trial."""
    if trial.state == FAILED:
        return f"failed: {trial.message:.200}"
    found = f"{definition.score} {trial.score:,.6g} at {trial.cost:,.6g} {definition.cost}"
    return f"stopped, {found}" if trial.state == STOPPED else found


def find_best_trial(trials: Sequence[SweepTrial]) -> SweepTrial | None:
    """Return the ended trial with the highest score, the cheapest if several are equal; None if no score is finite."""
    sound = [one for one in trials if one.state != RUNNING and math.isfinite(one.score)]
    return max(sound, key=lambda one: (one.score, -one.cost), default=None)


def format_values(values: Mapping[str, Any]) -> str:
    """Format the values of a trial with the shortest names of the options."""
    return ", ".join(f"{shorten_name(name)} {format_value(value)}" for name, value in values.items())
