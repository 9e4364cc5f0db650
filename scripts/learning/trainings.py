"""Trainings that a script sets beside each other: each is a process, of which a row is kept in a file of JSON lines."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from evorl.training.records.rows import evaluations


def trained(options: Sequence[str]) -> tuple[dict, float]:
    """The last evaluation of a training, whose folder is not kept, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        command = [sys.executable, "-m", "evorl.train", *options, f"run_dir={run}", "tensorboard=false"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(options)}\n{done.stderr[-2000:]}")
        return evaluations(run)[-1], time.perf_counter() - began


def kept(path: Path | None) -> list[dict]:
    """The rows in a file, where there is one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    return list(map(json.loads, lines))


def keep(path: Path | None, row: dict) -> None:
    """Adds a row to a file, where one is given."""
    if path:
        with path.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
