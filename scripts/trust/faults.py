"""Kill trainings at random moments, or stop their writes, resume them, and compare them with an undisturbed run.

python scripts/trust/faults.py --out faults.jsonl       200 faults; if run again, it continues with those that are left
python scripts/trust/faults.py --moments 20 --seed 1 agent=cemrl env=inverted_pendulum iterations=4
python scripts/trust/faults.py --by distribute --moments 20 agent=ppo env=cartpole iterations=10      by tasks, on Ray

A fault comes at a random moment between the first file of a run and its end. It is SIGKILL; or one, two or five
signals, each SIGINT or SIGTERM, within a second; or from then on every write to a file fails (RLIMIT_FSIZE 0).
Checkpoints are written all the time, so that many faults fall into a save.

The run is then resumed until it ends. It must have the state, best policy and replay buffer (CRC-32 of each) and the
rows of the undisturbed run. Only a run in which nothing was trained may be gone. Prints a line for each fault that was
not survived, then a Markdown table. Linux only.
"""

import argparse
import collections
import contextlib
import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SIGNALS = {"SIGKILL": 1, "one signal": 1, "two signals": 2, "five signals": 5}
FAULTS = (*SIGNALS, "writes fail")
DEFAULT = [
    "agent=td3",
    "env=fast",
    "iterations=40",
    "chunk=2",
    "evaluations=6",
    "env.max_episode_steps=20",
    "agent.workflow.random_steps=64",
    "agent.workflow.capacity=2000",
    "agent.workflow.eval_episodes=4",
]
ALWAYS = ["checkpoint.minutes=1e-9", "checkpoint.keep=3"]


def finish(command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def ending(run: Path) -> dict[str, Any]:
    """Return what two runs are compared by: digests of the last checkpoint, and the rows without their times."""
    steps = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    found = next(iter((run / "checkpoints" / str(max(steps)) / "progress").glob("metadata")))
    progress = json.loads(found.read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    end = {"digests": progress["digests"], "rows": [untimed(row) for row in rows]}
    for kind in ("train", "evaluation"):
        with (run / f"{kind}.csv").open(encoding="utf-8") as file:
            end[kind] = [untimed(row) for row in csv.DictReader(file)]
    return end


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith("seconds") and name != "duration"}


def survive(
    fault: str, moment: random.Random, seconds: float, command: list[str], options: list[str], run: Path, whole: Any
) -> list[str]:
    """Cause a fault, resume the run, and return where the fault fell and what was lost ("" if nothing)."""
    process = subprocess.Popen(
        [*command, *options, f"run_dir={run}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (run / "config.yaml").exists():
        time.sleep(0.005)
    time.sleep(moment.uniform(0, seconds))
    folders = [name for _, names, _ in os.walk(run / "checkpoints") for name in names]  # a folder may vanish meanwhile
    inside = any("orbax-checkpoint-tmp" in name for name in folders)
    begun = (run / "metrics.jsonl").exists()
    place = "inside a save" if inside else "outside a save" if begun else "before training"
    if process.poll() is not None:
        place = "ended before"
    elif fault == "writes fail":
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for i in range(SIGNALS.get(fault, 0)):
        time.sleep(moment.uniform(0, 0.3) if i else 0)
        one = signal.SIGKILL if fault == "SIGKILL" else moment.choice([signal.SIGINT, signal.SIGTERM])
        process.send_signal(one)
    _, errors = process.communicate()
    if "Traceback" in errors:
        return [place, f"a traceback: {errors[-1500:]}"]
    if not run.exists():
        return [place, "all" if begun else ""]
    where = [one for one in options if one.startswith("executor=")]
    resumed = finish(command, f"resume={run}", *where)
    if resumed.returncode:
        return [place, f"not resumed: {resumed.stderr[-500:]}"]
    end = ending(run)
    return [place, ", ".join(name for name in whole if end[name] != whole[name])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="by default all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file of outcomes, whose faults are not tried again")
    parser.add_argument("--by", choices=["train", "distribute"], default="train", help="the command that trains")
    parser.add_argument("overrides", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", f"evorl.{arguments.by}"]
    options, faults = [*arguments.overrides, *ALWAYS], arguments.fault or FAULTS
    outcomes: dict[int, list[str]] = {}
    if arguments.out is not None and arguments.out.exists():
        lines = map(json.loads, arguments.out.read_text(encoding="utf-8").splitlines())
        outcomes |= {line["i"]: line["outcome"] for line in lines}
    folder = Path(tempfile.mkdtemp())
    try:
        for name in ("warm", "whole"):  # the first one fills the compilation cache
            started = time.perf_counter()
            finished = finish(command, *options, f"run_dir={folder / name}")
            if finished.returncode:
                sys.exit(finished.stderr)
            seconds = time.perf_counter() - started
        whole = ending(folder / "whole")

        def one(i: int) -> None:
            own, moment = folder / str(i), random.Random(f"{arguments.seed} {i}")
            own.mkdir()
            fault = moment.choice(faults)
            place, lost = survive(fault, moment, seconds, command, options, own / "run", whole)
            outcomes[i] = [fault, place, lost]
            if arguments.out is not None:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"i": i, "outcome": outcomes[i]}) + "\n")
            if lost:
                print(f"{fault} {place}: lost {lost}", flush=True)
            else:
                shutil.rmtree(own)

        with ThreadPoolExecutor(arguments.workers) as pool:
            list(pool.map(one, (i for i in range(arguments.moments) if i not in outcomes)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counted = collections.Counter((fault, place) for fault, place, _ in outcomes.values())
    places = ("before training", "outside a save", "inside a save", "ended before")
    print(f"\n| fault | {' | '.join(places)} |\n|---|---|---|---|---|")
    for fault in FAULTS:
        print(f"| {fault} | {' | '.join(str(counted[fault, place]) for place in places)} |")
    lost = sum(bool(lost) for *_, lost in outcomes.values())
    print(f"\n{len(outcomes)} faults, {len(outcomes) - lost} survived")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
