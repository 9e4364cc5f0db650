"""Recorders: callables that take every row of a training."""

import json
import math
import time
from pathlib import Path
from typing import Any, TextIO

from evorl.training.fit import Row


class JsonLines:
    """Appends every row to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)

    def __call__(self, row: Row) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def forget_after(path: Path, iteration: int) -> None:
    """Drops the rows that a checkpoint of this iteration does not know, before a resumed run writes them again."""
    path = Path(path)
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # the last line of a killed process
            break
        if row["iteration"] > iteration:
            break
        kept.append(line + "\n")
    path.write_text("".join(kept), encoding="utf-8")


class Console:
    """Prints progress lines, at most one every `interval` seconds, and every evaluation."""

    def __init__(self, interval: float = 2.0, out: TextIO | None = None) -> None:
        self._interval, self._out = interval, out
        self._printed = -math.inf
        self._last: tuple[float, int] | None = None

    def __call__(self, row: Row) -> None:
        evaluation = row["kind"] == "evaluation"
        now = time.perf_counter()
        if not evaluation and now - self._printed < self._interval and row["progress"] < 1:
            return
        self._printed = now
        print(self.line(row), file=self._out, flush=True)

    def line(self, row: Row) -> str:
        """Percent, time and ETA, iteration, env steps, return, and for training steps per second without compiling."""
        done, seconds = row["progress"], row["seconds"]
        running = seconds - row["compile_seconds"]
        eta = f"{_clock(running * (1 - done) / done)} left" if done > 0 else ""
        parts = [
            f"{100 * done:3.0f}%  {_clock(seconds)} {eta:>14}",
            f"iteration {row['iteration']}",
            f"{row.get('env_steps', 0):,} env steps",
        ]
        label = "evaluation" if row["kind"] == "evaluation" else "return"
        parts.append(f"{label} {row['return']:.1f}{_spread(row)}" if row["episode_length"] else "no episode ended")
        if row["kind"] == "train":
            previous, self._last = self._last, (seconds, row.get("env_steps", 0))
            if previous and seconds > previous[0]:
                parts.append(f"{(self._last[1] - previous[1]) / (seconds - previous[0]):,.0f} env steps/s")
            else:
                parts.append(f"compiled in {row['compile_seconds']:.0f} s")
        return "  ".join(parts)


def _spread(row: Row) -> str:
    """The range over the seeds in which an episode ended."""
    seeds: dict[str, list[Any]] = row.get("seeds", {})
    values = [x for x, length in zip(seeds.get("return", []), seeds.get("episode_length", []), strict=True) if length]
    return f" ({min(values):.1f} to {max(values):.1f} over {len(values)} seeds)" if values else ""


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
