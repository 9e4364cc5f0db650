"""Draws the evaluations of run directories, mean and range over seeds, and prints them as a Markdown table.

python scripts/curve.py docs/curve.png "CEM-RL=runs/a" "TD3=runs/b" [--goal 950] [--title "Brax inverted_pendulum"]
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def evaluations(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == "evaluation"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", help="LABEL=RUN_DIR")
    parser.add_argument("--goal", type=float)
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    print("| run | seeds | env steps | minutes | final return of each seed | minutes until all reached the goal |")
    print("|---|---|---|---|---|---|")
    for item in arguments.runs:
        label, _, folder = item.partition("=")
        rows = evaluations(Path(folder))
        values = np.array([row.get("seeds", {"return": [row["return"]]})["return"] for row in rows])
        steps, minutes = ([row[name] / unit for row in rows] for name, unit in (("env_steps", 1000), ("seconds", 60)))
        for axis, x in zip(axes, (steps, minutes), strict=True):
            axis.plot(x, values.mean(1), label=label, marker=".")
            axis.fill_between(x, values.min(1), values.max(1), alpha=0.2)
        reached = "-"
        if arguments.goal is not None:
            at = [row["seconds"] / 60 for row, v in zip(rows, values, strict=True) if v.min() >= arguments.goal]
            reached = f"{at[0]:.1f}" if at else "not reached"
        final = ", ".join(f"{v:.0f}" for v in values[-1])
        print(f"| {label} | {values.shape[1]} | {1000 * steps[-1]:,.0f} | {minutes[-1]:.1f} | {final} | {reached} |")
    for axis, name in zip(axes, ("thousand env steps of each seed", "minutes for all seeds together"), strict=True):
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        if arguments.goal is not None:
            axis.axhline(arguments.goal, color="grey", linestyle=":", linewidth=1)
    axes[0].set_ylabel("greedy return, mean and range")
    axes[1].legend(loc="lower right")
    figure.suptitle(arguments.title, fontsize=10)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=130)


if __name__ == "__main__":
    main()
