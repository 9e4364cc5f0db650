"""Train a configuration in ways that must not change the result, and compare the results.

python scripts/trust/determinism.py                                    every registered agent, tiny
python scripts/trust/determinism.py agent=cemrl env=hopper iterations=6     this one

The same seed is trained in three ways: twice; with other chunks, evaluations and recorders; and stopped half-way and
resumed. State and replay buffer must be bitwise identical (CRC-32). Then it is trained as the second of two seeds:
every number of its last rows must be equal to a relative 1e-3, as the same draws run in another program. On a GPU the
runs are deterministic=true. Prints a Markdown table; the exit code is 1 if something differs.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from evorl.training.configuration import config, discovery

ENVS = ("fast", "cartpole")  # for continuous and for discrete actions
TINY = {"num_envs": 4, "num_steps": 8, "num_updates": 4, "min_updates": 2, "max_updates": 8, "batch_size": 16}
TINY |= {"capacity": 512, "random_steps": 64, "eval_episodes": 8}
OF_A_RUN = {"return", "episode_length", "env_steps", "episodes"}


def tiny(agent: str) -> list[str]:
    """Return the options of the agent at small sizes, on the first environment that it supports."""
    for env in ENVS:
        options = dict(config.iterate_paths(config.compose_config([f"agent={agent}", f"env={env}"])))
        sizes = [f"agent.workflow.{name}={n}" for name, n in TINY.items() if f"agent.workflow.{name}" in options]
        sizes += [f"{name}=[16]" for name in options if name.endswith(".hidden")]
        given = [f"agent={agent}", f"env={env}", "env.max_episode_steps=20", "iterations=6", *sizes]
        if run(*given, "dry_run=true", check=False).returncode == 0:
            return given
    sys.exit(f"{agent} acts in none of {', '.join(ENVS)}")


def run(*options: str, check: bool = True) -> Any:
    command = [sys.executable, "-m", "evorl.train", *options]
    return subprocess.run(command, check=check, capture_output=True, text=True)


def digests(folder: Path) -> dict[str, int]:
    """Return the digests of the state and the replay buffer in the last checkpoint."""
    last = max((path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    found = json.loads((last / "progress" / "metadata").read_text(encoding="utf-8"))["digests"]
    return {name: found[name] for name in ("state", "replay") if name in found}


def last_rows(folder: Path, seed: int | None) -> dict[str, float]:
    """Return the metrics of the last chunk and of the last evaluation, of one seed if there are several."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    kinds = {row["kind"]: row for row in rows}
    found = {}
    for kind, row in kinds.items():
        names = OF_A_RUN | {name for name in row if name.endswith("_loss")}
        for name in names & set(row):
            found[f"{kind}.{name}"] = row[name] if seed is None else row["seeds"][name][seed]
    return found


def compare(options: list[str], folder: Path) -> dict[str, bool]:
    half = next((int(o.partition("=")[2]) // 2 for o in options if o.startswith("iterations=")), 0)
    ways = {
        "twice": ["chunk=2", "evaluations=3"],
        "chunks, evaluations, recorders": ["chunk=5", "evaluations=1", "tensorboard=false"],
        "resumed": ["chunk=2", f"iterations={half}"],
    }
    run(*options, "chunk=2", "evaluations=3", f"run_dir={folder / 'whole'}")
    whole, same = digests(folder / "whole"), {}
    for i, (way, given) in enumerate(ways.items()):
        run(*options, *given, f"run_dir={folder / str(i)}")
        if way == "resumed":
            run(f"resume={folder / str(i)}", f"iterations={2 * half}")
        same[way] = digests(folder / str(i)) == whole
    ways = {"two": ["num_seeds=2", "seed=0"], "alone": ["seed=1"]}
    for name, given in ways.items():
        run(*options, *given, "chunk=1", "evaluations=1", f"run_dir={folder / name}")
    two, alone = last_rows(folder / "two", 1), last_rows(folder / "alone", None)
    same["second of two seeds"] = all(math.isclose(two[n], alone[n], rel_tol=1e-3, abs_tol=1e-5) for n in alone)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="an even number of iterations=N among them")
    given = parser.parse_args().overrides
    agents = [None] if given else list(discovery.find_choices("agent"))
    print("| configuration | twice | chunks, evaluations, recorders | resumed | second of two seeds |")
    print("|---|---|---|---|---|")
    whole = True
    for agent in agents:
        options = given or tiny(str(agent))
        with tempfile.TemporaryDirectory() as folder:
            same = compare([*options, "deterministic=true"], Path(folder))
        whole &= all(same.values())
        label = " ".join(options[:2])
        print(f"| {label} | {' | '.join('same' if equal else 'DIFFERS' for equal in same.values())} |", flush=True)
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
