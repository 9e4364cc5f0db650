"""Kill the workers and the parents of sweeps at random moments, resume the sweeps, and check their results.

python scripts/trust/sweep_faults.py                 20 kills of a sweep with one worker, and of one with two
python scripts/trust/sweep_faults.py --kills 4 --seed 1

After each SIGKILL, of the parent or of a worker, every trial that had ended must be unchanged and must not be trained
again. A killed worker is replaced while the parent lives. At the end, the sweep of one worker must have the points and
the curves, number by number, of an undisturbed sweep. Trials are short, so that many kills fall between two of them.
Prints a line for each fault, then the result. Linux only.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from evorl.sweeps.database import NAME
from evorl.sweeps.store import SweepStore, get_trial_folder
from evorl.sweeps.trials import RUNNING, SweepTrial

SWEEP = [
    "agent=ppo",
    "env=fast",
    "env.max_episode_steps=20",
    "evaluations=8",
    "agent.chunk=1",
    "agent.workflow.num_envs=4",
    "agent.workflow.num_steps=8",
    "agent.workflow.batch_size=32",
    "agent.workflow.eval_episodes=4",
    "agent.workflow.agent.hidden=[8]",
    "checkpoint.minutes=1e-9",
    "tensorboard=false",
    "space.env_steps=${log_uniform:500,4000}",
]
LONGEST = 12.0  # seconds from the start of the first worker to a kill, at most


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "evorl.sweep", *options]


def trials(folder: Path) -> list[SweepTrial]:
    if not (folder / NAME).exists():
        return []
    with closing(SweepStore(folder)) as store:
        return store.read_trials()


def ended(folder: Path) -> dict[int, tuple[SweepTrial, Any]]:
    """Return the trials that have ended, with the time at which their rows were last written."""
    whole = [one for one in trials(folder) if one.state != RUNNING]
    times = {one.number: get_trial_folder(folder, one.number) / "metrics.jsonl" for one in whole}
    return {one.number: (one, times[one.number].stat().st_mtime_ns) for one in whole}


def workers(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def disturbed(folder: Path, count: int, kills: int, workers_wanted: int, moment: random.Random) -> tuple[int, int]:
    """Kill and resume a sweep; return the kills of parents alone, and the number of lost or changed trials."""
    parents, faults, total = 0, 0, count
    options = [*SWEEP, f"trials={count}", f"workers={workers_wanted}", f"sweep_dir={folder}"]
    for kill in range(kills):
        process = subprocess.Popen(command(*options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not ((folder / NAME).exists() and workers(process.pid)):
            time.sleep(0.01)
        assert process.poll() is None, "a sweep has ended by itself"
        time.sleep(moment.uniform(0, LONGEST))
        before, there, of_parent = ended(folder), workers(process.pid), moment.random() < 0.5
        if not there or of_parent:
            process.kill()
            parents += 1
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(moment.choice(there), signal.SIGKILL)
            time.sleep(moment.uniform(0, LONGEST / 2))  # a new worker replaces it
            before |= ended(folder)
            process.kill()
        process.wait()
        after = ended(folder)
        lost = [number for number, one in before.items() if after.get(number) != one]
        faults += len(lost)
        running = sum(one.state == RUNNING for one in trials(folder))
        who = "parent" if of_parent or not there else "worker, then parent"
        told = f"{len(before)} trials ended, {running} running, {len(lost)} lost or changed"
        print(f"kill {kill}: {who}, {told}", flush=True)
        if len(after) >= total - 2:
            total += count
        options = [f"resume={folder}", f"trials={total}"]
    before = ended(folder)
    subprocess.run(command(*options), check=True, stdout=subprocess.DEVNULL)
    after = ended(folder)
    faults += sum(after.get(number) != one for number, one in before.items())
    assert len(after) == total, f"{len(after)} of {total} trials have ended"
    return parents, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    top, moment, wrong = given.folder or Path(tempfile.mkdtemp()), random.Random(given.seed), 0
    for count in given.workers:
        folder = top / f"{count}"
        parents, faults = disturbed(folder, given.trials, given.kills, count, moment)
        found = trials(folder)
        told = f"{parents} of parents alone: {len(found)} trials, {faults} at fault"
        print(f"{count} workers, {given.kills} kills, {told}", flush=True)
        wrong += faults
        if count == 1:
            whole = top / "whole"
            options = [*SWEEP, f"trials={len(found)}", f"sweep_dir={whole}"]
            subprocess.run(command(*options), check=True, stdout=subprocess.DEVNULL)
            same = sum(one == other for one, other in zip(found, trials(whole), strict=True))
            print(f"as if undisturbed: {same} of {len(found)}", flush=True)
            wrong += len(found) - same
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
