"""Time `evorl.report` on many runs, and print the size of the page.

python scripts/benchmarks/report.py                 1,000 runs of 1,000 rows in 100 groups, every tenth an evaluation
python scripts/benchmarks/report.py --runs 100 --groups 100 --evaluations 1

The rows are copies of those of a short training.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

TRAINING = "agent=ppo env=cartpole iterations=2 evaluations=1 tensorboard=false"


def write_runs(folder: Path, trained: Path, given: Any) -> None:
    cfg = yaml.safe_load((trained / "config.yaml").read_text())
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    kinds = {row["kind"]: row for row in rows}
    for i in range(given.runs):
        run = folder / f"{i:05}"
        run.mkdir()
        cfg["seed"] = i // given.groups
        cfg["agent"]["workflow"]["agent"]["clip"] = 0.1 + 0.1 * (i % given.groups) / given.groups
        (run / "config.yaml").write_text(yaml.safe_dump(cfg, sort_keys=False))
        with (run / "metrics.jsonl").open("w") as file:
            for j in range(given.rows):
                row = kinds["train" if j % given.evaluations else "evaluation"]
                row |= {"iteration": j, "seconds": float(j), "env_steps": 100 * j, "return": float(j % 50 + i % 7)}
                file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=10, help="rows for each evaluation")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, trained, out = (Path(place) / name for name in ("runs", "trained", "report.html"))
        folder.mkdir()
        options = [*TRAINING.split(), f"run_dir={trained}"]
        subprocess.run([sys.executable, "-m", "evorl.train", *options], check=True, stdout=subprocess.DEVNULL)
        write_runs(folder, trained, given)
        began, before = time.perf_counter(), os.times()
        command = [sys.executable, "-m", "evorl.report", str(folder), f"out={out}", "policies=false"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        print(f"{given.runs} runs of {given.rows} rows in {given.groups} groups: ", end="")
        print(f"{time.perf_counter() - began:.1f} s, {spent:.1f} CPU s, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
