"""Time a sweep whose trials take no time: its store, its suggestions, its parent process, and its report.

python scripts/benchmarks/sweeps_load.py                              2,000 trials, a searched budget, 8 workers
python scripts/benchmarks/sweeps_load.py --filled 1800                the last 200 of them; the others are random ones
python scripts/benchmarks/sweeps_load.py --filled 19900 --trials 20000
python scripts/benchmarks/sweeps_load.py --trials 400 --kill 0.02     a worker is killed, or fails, at 2 % of the trials

The sweep is defined for PPO on CartPole, with its hyperparameters and env_steps searched. A worker takes a trial from
the store, reports 20 evaluations and ends the trial. The score is a smooth function of the trial's point and its cost,
with 5 % noise. If a trial is behind the others, it is stopped. The parent process of `evorl.sweep` starts the workers.

The script prints CPU seconds of a suggestion as the number of trials grows, the longest time to report an evaluation,
the number of lost workers, and CPU seconds of the parent. It also prints the seconds of the report, of reading the
store, and of the checks of a resume.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as evorl.sweep does

import numpy as np

from evorl.reports import sweeps as reports
from evorl.sweeps import definition, space_options, worker_pool
from evorl.sweeps.database import NAME
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import DONE, FAILED, STOPPED, Evaluation, Sampler, SweepTrial

POINTS = 20
SPENT = "spent"  # suffix of the files of workers' measurements
KILL = "EVORL_BENCHMARK_KILL"  # environment variable: probability that a worker fails in a trial


@dataclass
class Timed:
    """A sampler that records the CPU seconds of each suggestion, with the number of trials."""

    sampler: Sampler
    spent: list[tuple[int, float]] = field(default_factory=list)

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> np.ndarray:
        now = time.process_time()
        found = self.sampler.suggest(space, trials, n, seed)
        self.spent.append((len(trials), time.process_time() - now))
        return found


def curve(point: Sequence[float], budget: float, rng: np.random.Generator) -> list[Evaluation]:
    height, found = 1 - float(((np.array(point) - 0.6) ** 2).sum()), []
    for used in (np.arange(1, POINTS + 1) / POINTS).tolist():
        score = height * (1 - np.exp(-budget * used / 50_000)) + 0.05 * rng.normal()
        found.append(Evaluation(used, budget * used, float(score)))
    return found


def fill(store: SweepStore, space: SearchSpace, count: int) -> None:
    rng, trials, curves = np.random.default_rng(0), [], []
    for number, point in enumerate(rng.uniform(size=(count, space.size))):
        values = space.decode(point)
        trials.append((number, json.dumps(point.tolist()), json.dumps(values)))
        curves += [(number, *one) for one in curve(point.tolist(), values["env_steps"], rng)]
    with closing(sqlite3.connect(store.folder / NAME)) as file, file:
        file.executemany(f"INSERT INTO trials VALUES (?, ?, ?, '{DONE}', NULL, 0, '')", trials)
        file.executemany("INSERT INTO curves VALUES (?, ?, ?, ?)", curves)


def work(folder: Path) -> None:
    store, found = definition.open_sweep(folder, (), "resume")
    sampler, rng, longest = Timed(found.build_sampler()), np.random.default_rng(os.getpid()), 0.0
    path = folder.parent / f"{os.getpid()}.{SPENT}"
    with store.register_owner() as owner:
        while taken := store.claim_trials(owner, 1, found.space, sampler):
            trial = taken[0]
            if rng.uniform() < float(os.environ[KILL]):
                if rng.uniform() < 0.5:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("a worker that fails")
            state, used, budget = DONE, 0.0, trial.values["env_steps"]
            for one in curve(trial.point, budget, rng):
                now, used = time.perf_counter(), one.used_share
                behind = store.observe(trial.number, one)
                longest = max(longest, time.perf_counter() - now)
                if behind:
                    state = STOPPED
                    break
            store.end_trial(trial.number, state, used)
            path.write_text(json.dumps([longest, time.process_time(), sampler.spent]))


def timed(what: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - wall, time.process_time() - cpu


def swept(folder: Path, trials: int, filled: int, workers: int, sampler: str) -> None:
    chosen = ["agent=ppo", "env=cartpole"]
    variants, space = space_options.parse_search(chosen, ["space.env_steps=${log_uniform:20_000,200_000}"])
    found = SweepDefinition(variants, space, space_options.build_sampler_node(sampler, {}), "return", "env_steps", 0)
    folder.mkdir(parents=True)
    settings = {"trials": trials, "workers": workers, "vmapped": 1, "vectorized": None, "seed": 0}
    store, lines = SweepStore.create(folder, settings | {"definition": found.to_data()}), list[str]()
    fill(store, found.space, filled)
    wall, cpu = timed(lambda: worker_pool.run_sweep(store, found, workers, lines.append))
    measured = [json.loads(path.read_text()) for path in folder.parent.glob(f"*.{SPENT}")]
    spent = sorted((count, seconds) for _, _, of_worker in measured for count, seconds in of_worker)
    all_trials = store.read_trials()
    states = {state: sum(one.state == state for one in all_trials) for state in (DONE, STOPPED, FAILED)}
    lost = sum("it is replaced" in line for line in lines)
    print(f"{len(all_trials)} trials ({states}), {lost} workers lost, {len(spent)} suggestions, {wall:.0f} s")
    for low in np.linspace(filled, trials, 6)[:-1]:
        part = [seconds for count, seconds in spent if low <= count < low + (trials - filled) / 5]
        if part:
            told = f"mean {np.mean(part):.3f}, most {max(part):.3f} CPU s of a suggestion"
            print(f"  {low:6,.0f} trials and more: {told}")
    print(f"  telling of an evaluation: at most {max(longest for longest, _, _ in measured):.2f} s")
    of_workers = sum(seconds for _, seconds, _ in measured)
    suggesting = sum(seconds for _, seconds in spent)
    print(f"  workers: {of_workers:.0f} CPU s, {suggesting:.0f} of them suggestions; parent: {cpu:.0f} CPU s")
    wall, cpu = timed(lambda: list(reports.write_report(store, found)))
    print(f"  report: {cpu:.1f} CPU s in {wall:.1f} s")
    print(f"  reading: {timed(lambda: SweepStore(folder).read_trials(found.space))[0]:.2f} s", end="; ")
    print(
        f"the checks of a resume: {timed(lambda: [found.check_values(x.values) for x in all_trials])[0]:.2f} s", end=""
    )
    print(f"; what is left: {timed(lambda: SweepStore(folder).count_remaining(trials))[0]:.3f} s")


def main() -> None:
    if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        work(Path(sys.argv[1]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--filled", type=int, default=0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sampler", default="protein")
    parser.add_argument("--kill", type=float, default=0.0)
    given = parser.parse_args()
    os.environ[KILL] = str(given.kill)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    worker_pool.MODULE = Path(__file__).stem
    with tempfile.TemporaryDirectory() as top:
        swept(Path(top) / "sweep", given.trials, given.filled, given.workers, given.sampler)


if __name__ == "__main__":
    main()
