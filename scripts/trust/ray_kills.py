"""Kill Ray's workers at random moments, and compare the results with those of undisturbed processes without Ray.

python scripts/trust/ray_kills.py [--kills 20] [--workers 3] [--seed 0] [--only sweep|evolution|multirun]

sweep       sweeps of seven trials (too few for a trial to be behind) with random search: points and learning curves
evolution   OpenES on a Gymnasium environment, whose individuals are tasks: the fitness of every generation
multirun    PPO with three seeds on a Gymnasium environment: the number of rows of each training, since environments
            on the host start new episodes when a training is resumed

Each is repeated until --kills processes were killed: worker processes, or the Ray actors that have started them. A
result that is missing or differs is an error. The workers share the cores of this machine.
"""

import argparse
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

PPO = ["agent=ppo", "agent.chunk=1", "agent.workflow.num_envs=4", "agent.workflow.num_steps=8", "tensorboard=false"]
PPO += ["agent.workflow.batch_size=32", "agent.workflow.num_epochs=1", "agent.workflow.eval_episodes=4"]
PPO += ["agent.workflow.agent.hidden=[8]", "env.max_episode_steps=20", "checkpoint.minutes=0.001"]
SPACE = ["env=cartpole", "evaluations=4", "space={}", "space.env_steps=${log_uniform:256,1024}", "sampler=random"]
SPACE += ["space.learning_rate=${log_uniform:1e-5,1e-2}", "trials=7"]
HOST = ["env=gymnasium/CartPole-v1", "evaluations=1"]
OPENES = ["agent=openes", "agent.workflow.evolver.population_size=8", "agent.workflow.agent.hidden=[8]", *HOST]
OPENES += ["agent.workflow.normalization=none", "agent.workflow.eval_episodes=4", "env.max_episode_steps=100"]
OPENES += ["iterations=40", "parts=4", "agent.chunk=1", "tensorboard=false"]
SEEDS = range(3)


def run(folder: Path, module: str, *words: str) -> None:
    """Run a command of evorl to its end."""
    subprocess.run([sys.executable, "-m", f"evorl.{module}", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def find_victims(root: int) -> list[int]:
    """Return the workers below a process: Ray actors of evorl, and the processes that they have started."""
    parents, words = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            number = int(path.name)
            parents[number] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words[number] = (path / "cmdline").read_bytes()
        except OSError:
            continue
    below = {root}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    names = b"ray::ProcessActor", b"ray::RayWorker"
    modules = b"evorl.sweeps.worker", b"evorl.cli.guarded_training"
    is_worker = lambda text: text.startswith(names) or any(one in text for one in modules)  # noqa: E731
    return sorted(one for one in below if is_worker(words.get(one, b"")))


def run_and_kill(folder: Path, module: str, words: list[str], draw: random.Random, most: int) -> int:
    """Run a command and kill up to `most` of its workers; return how many were killed."""
    command = [sys.executable, "-m", f"evorl.{module}", *words]
    with (folder / "output.log").open("ab") as log:
        process, killed = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log), 0
        while process.poll() is None:
            time.sleep(draw.uniform(0.5, 6))
            if killed < most and (victims := find_victims(process.pid)):
                try:
                    os.kill(draw.choice(victims), signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
    if process.returncode:
        raise SystemExit(
            f"{' '.join(words)} ended with {process.returncode}: {(folder / 'output.log').read_text()[-500:]}"
        )
    return killed


def read_sweep(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "sweep.sqlite")) as file:
        trials = file.execute("SELECT number, point, options, state, message FROM trials ORDER BY number").fetchall()
        return [trials, file.execute("SELECT * FROM curves ORDER BY trial, used").fetchall()]


def read_rows(folder: Path) -> list[Any]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["kind"], row["iteration"], row["return"], row["env_steps"]) for row in rows]


def sweep(folder: Path, ray: list[str]) -> tuple[str, list[str], Callable[[str], Any]]:
    run(folder, "sweep", *PPO, *SPACE, "sweep_dir=alone")
    return "sweep", [*PPO, *SPACE, "executor=ray", *ray, "sweep_dir={}"], lambda name: read_sweep(folder / name)


def evolution(folder: Path, ray: list[str]) -> tuple[str, list[str], Callable[[str], Any]]:
    run(folder, "distribute", *OPENES, "executor=serial", "run_dir=alone")
    return "distribute", [*OPENES, *ray, "run_dir={}"], lambda name: read_rows(folder / name)


def multirun(folder: Path, ray: list[str]) -> tuple[str, list[str], Callable[[str], Any]]:
    words = ["-m", *PPO, *HOST, "iterations=30", f"seed={','.join(map(str, SEEDS))}"]
    run(folder, "train", *words, "run_dir=alone")
    read = lambda name: [len(read_rows(folder / name / f"seed-{seed}")) for seed in SEEDS]  # noqa: E731
    return "distribute", [*words, *ray, "run_dir={}"], read


PLACES = {"sweep": sweep, "evolution": evolution, "multirun": multirun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(PLACES))
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    ray = [f"workers={given.workers}", f"cpus_per_worker={math.floor(1000 * cores / given.workers) / 1000}"]
    for name in [given.only] if given.only else PLACES:
        draw, killed, runs = random.Random(given.seed), 0, 0
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            module, words, read = PLACES[name](folder, ray)
            expected = read("alone")
            while killed < given.kills:
                runs += 1
                own = [word.format(f"run{runs}") if "{}" in word and "space" not in word else word for word in words]
                killed += run_and_kill(folder, module, own, draw, min(4, given.kills - killed))
                if (found := read(f"run{runs}")) != expected:
                    raise SystemExit(f"{name}, run {runs}: expected {expected}, found {found}")
        print(f"{name}: {killed} kills in {runs} runs with {given.workers} workers; every result is that without Ray")


if __name__ == "__main__":
    main()
