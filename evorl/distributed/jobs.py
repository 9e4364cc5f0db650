"""Independent trainings on a Ray cluster: each is a process of its own, and is resumed if it is lost."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evorl import package
from evorl.distributed.process_pool import RayProcessPool
from evorl.training.configuration.config_file import FILE_NAME
from evorl.training.configuration.multirun import STOP_CODE, quote_run_dir
from evorl.training.records import files
from evorl.training.stopping import StopHandler

MAX_LOSSES = 5  # losses of a training, after which it has failed
POLL_SECONDS = 0.3
GRACE_SECONDS = 600  # time for trainings to save, before they are killed
MODULE = "evorl.cli.guarded_training"


@dataclass
class Job:
    """Training with its own overrides and folder."""

    overrides: Sequence[str]
    folder: Path
    packages: Sequence[str] = ()  # packages of the configuration, which a resumed run must trust
    code: int | None = None  # exit code, once it has ended
    losses: int = 0

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of Python; the training is resumed if it has begun."""
        if (self.folder / FILE_NAME).is_file():
            wandb = [one for one in self.overrides if one.startswith("wandb")]  # not in the saved configuration
            trust = package.format_trust(self.packages)
            return ["-m", MODULE, f"resume={quote_run_dir(self.folder)}", *trust, *wandb]
        given = [one for one in self.overrides if not one.startswith("run_dir=")]
        return ["-m", MODULE, *given, f"run_dir={quote_run_dir(self.folder)}"]

    def describe_loss(self, code: int) -> str:
        """Describe how a process of the training ended."""
        return f"{self.folder}: was killed by {signal.Signals(-code).name}; it is resumed"


def run_jobs(jobs: Sequence[Job], pool: RayProcessPool, workers: int, say: Callable[[str], None]) -> bool:
    """Run trainings until all have ended, `workers` at a time; set their exit codes.

    A training whose process was killed, or whose machine was lost, is resumed from its last checkpoint. A
    first signal asks all trainings to save and stop.

    Args:
        jobs: Trainings, whose folders are on storage that all machines share.
        pool: Pool of processes.
        workers: Maximum number of trainings at a time.
        say: Function that receives a line about each training that starts, ends or is lost.

    Returns:
        True if a signal has stopped the trainings.
    """
    waiting, running = list(jobs), dict[int, Job]()
    with StopHandler() as stopping:
        try:
            while (waiting or running) and not stopping():
                for place in [place for place in range(workers) if place not in running]:
                    if waiting:
                        running[place] = waiting.pop(0)
                        _start(pool, place, running[place])
                        say(f"{running[place].folder}: starting")
                _collect(pool, running, waiting, say)
                time.sleep(POLL_SECONDS)
            pool.stop()
            deadline = time.monotonic() + GRACE_SECONDS
            while running and time.monotonic() < deadline:
                _collect(pool, running, [], say)
        finally:
            pool.kill()
        return any(job.code in (None, STOP_CODE) for job in jobs)


def _start(pool: RayProcessPool, place: int, job: Job) -> None:
    log = job.folder.with_name(f"{job.folder.name}.log")
    pool.start(place, job.arguments, {}, log.absolute())


def _collect(pool: RayProcessPool, running: dict[int, Job], waiting: list[Job], say: Callable[[str], None]) -> None:
    """Take the trainings that have ended from `running`; those that were lost wait again."""
    for place, code in pool.poll().items():
        job = running.pop(place)
        if code < 0 and job.losses + 1 < MAX_LOSSES:
            job.losses += 1
            say(job.describe_loss(code))
            waiting.insert(0, job)
            continue
        job.code = code if code >= 0 else 1
        say(f"{job.folder}: {_describe_end(job)}")


def _describe_end(job: Job) -> str:
    if job.code == 0:
        return "done"
    if job.code == STOP_CODE:
        return "stopped and saved"
    lines = files.read_tail(job.folder.with_name(f"{job.folder.name}.log")).split("\n")
    return f"failed: {next((line for line in reversed(lines) if line), 'no output'):.300}"
