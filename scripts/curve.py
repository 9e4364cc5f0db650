"""Draws the evaluations of run directories and prints the last of each as a Markdown table.

The curve is the mean over seeds with its 95 % bootstrap interval; the table has the interquartile mean too.

python scripts/curve.py docs/curve.png "CEM-RL=runs/a" "TD3=runs/b" [--goal 950] [--title "Brax inverted_pendulum"]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from evorl import stats


def evaluations(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == "evaluation"]


def with_interval(values: np.ndarray, statistic: Callable[..., Any]) -> str:
    low, high = stats.interval(values, statistic)
    return f"{statistic(values):.0f}" + (f" [{low:.0f}, {high:.0f}]" if np.isfinite(low) else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", help="LABEL=RUN_DIR")
    parser.add_argument("--goal", type=float)
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    columns = ["run", "seeds", "env steps of each", "minutes", "mean [95 %]", "IQM [95 %]", "each seed"]
    if arguments.goal is not None:
        columns.append(f"minutes until all reached {arguments.goal:g}")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for item in arguments.runs:
        label, _, folder = item.partition("=")
        rows = evaluations(Path(folder))
        values = np.array([row.get("seeds", {"return": [row["return"]]})["return"] for row in rows])
        steps, minutes = ([row[name] / unit for row in rows] for name, unit in (("env_steps", 1000), ("seconds", 60)))
        for axis, x in zip(axes, (steps, minutes), strict=True):
            axis.plot(x, values.mean(1), label=label, marker=".")
            axis.fill_between(x, *np.transpose([stats.interval(v) for v in values]), alpha=0.2)
        final = values[-1]
        cells = [label, str(final.size), f"{1000 * steps[-1]:,.0f}", f"{minutes[-1]:.1f}"]
        cells += [with_interval(final, np.mean), with_interval(final, stats.iqm), ", ".join(f"{v:.0f}" for v in final)]
        if arguments.goal is not None:
            at = [row["seconds"] / 60 for row, v in zip(rows, values, strict=True) if v.min() >= arguments.goal]
            cells.append(f"{at[0]:.1f}" if at else "not reached")
        print(f"| {' | '.join(cells)} |")
    for axis, name in zip(axes, ("thousand env steps of each seed", "minutes for all seeds together"), strict=True):
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        if arguments.goal is not None:
            axis.axhline(arguments.goal, color="grey", linestyle=":", linewidth=1)
    axes[0].set_ylabel("greedy return, mean and 95 % interval")
    axes[1].legend(loc="lower right")
    figure.suptitle(arguments.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=130)


if __name__ == "__main__":
    main()
