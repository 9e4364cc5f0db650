"""python -m evorl.curve OUT RUN ...: draws the evaluations of runs, and prints the last of each as a Markdown table.

The curve is the mean over seeds with its 95 % bootstrap interval; the table has the interquartile mean too. Rows that
are damaged are left out, which the last line and exit code 2 tell.

python -m evorl.curve curve.png runs/a runs/b
python -m evorl.curve docs/curve.png "CEM-RL=runs/a" "TD3=runs/b" [--goal 950] [--title "Brax inverted_pendulum"]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evorl import stats
from evorl.command import Parser, command, pyplot, save
from evorl.errors import OptionError, escaped, require
from evorl.training.records.rows import JSON_LINES, recorded


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run: returns [evaluations, seeds], and when each was."""

    label: str
    returns: np.ndarray
    env_steps: np.ndarray  # of each seed
    minutes: np.ndarray


def read(given: str, damages: list[str]) -> Curve:
    """Return the curve of LABEL=RUN, or of RUN under the name of its folder.

    Args:
        given: the word of the command line.
        damages: takes a line about rows that were left out.

    Raises:
        OptionError: where nothing can be drawn.
    """
    label, named, folder = given.partition("=")
    run = Path(folder if named else given)
    label = escaped(label if named else run.resolve().name)
    require(bool(label and (folder or not named)), "run", given, "must be RUN or LABEL=RUN")
    if not (run / JSON_LINES).is_file():
        raise OptionError(f"run={run}: {f'holds no {JSON_LINES}' if run.is_dir() else 'is not there'}")
    rows, damage = recorded(run, "evaluation")
    damages += [damage] if damage else []
    require(bool(rows), "run", run, damage.partition(": ")[2] or "has no evaluation yet")
    lacking = {"return", "env_steps"} - set.intersection(*map(set, rows))
    require(not lacking, "run", run, f"its evaluations have no {' or '.join(sorted(lacking))}")
    returns = [row.get("seeds", {}).get("return", [row["return"]]) for row in rows]
    alike = len({len(values) for values in returns}) == 1
    require(alike, "run", run, "its evaluations are of different numbers of seeds")
    steps, seconds = (np.array([row[name] for row in rows], float) for name in ("env_steps", "seconds"))
    return Curve(label, np.array(returns, float), steps, seconds / 60)


def with_interval(values: np.ndarray, statistic: Callable[..., Any]) -> str:
    """The statistic of values, and its 95 % bootstrap interval where there is one."""
    low, high = stats.interval(values, statistic)
    return f"{statistic(values):.0f}" + (f" [{low:.0f}, {high:.0f}]" if np.isfinite(low) else "")


def table(curves: list[Curve], goal: float | None) -> str:
    """The last evaluation of each, as Markdown."""
    columns = ["run", "seeds", "env steps of each", "minutes", "mean [95 %]", "IQM [95 %]", "each seed"]
    columns += [f"minutes until all reached {goal:g}"] if goal is not None else []
    lines = [" | ".join(columns), "---|" * (len(columns) - 1) + "---"]
    for curve in curves:
        final = curve.returns[-1]
        cells = [curve.label, str(final.size), f"{curve.env_steps[-1]:,.0f}", f"{curve.minutes[-1]:.1f}"]
        cells += [with_interval(final, np.mean), with_interval(final, stats.iqm), ", ".join(f"{v:.0f}" for v in final)]
        if goal is not None:
            at = curve.minutes[curve.returns.min(1) >= goal]
            cells.append(f"{at[0]:.1f}" if at.size else "not reached")
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" if "---|" not in line else f"|{line}|" for line in lines)


def draw(curves: list[Curve], goal: float | None, title: str) -> Any:
    """The figure: returns over env steps and over minutes."""
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for curve in curves:
        ends = np.transpose([stats.interval(values) for values in curve.returns])
        for axis, x in zip(axes, (curve.env_steps / 1000, curve.minutes), strict=True):
            axis.plot(x, curve.returns.mean(1), label=curve.label, marker=".")
            axis.fill_between(x, *ends, alpha=0.2)
    for axis, name in zip(axes, ("thousand env steps of each seed", "minutes for all seeds together"), strict=True):
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        if goal is not None:
            axis.axhline(goal, color="grey", linestyle=":", linewidth=1)
    axes[0].set_ylabel("greedy return, mean and 95 % interval")
    axes[1].legend(loc="lower right")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    return figure


def main(arguments: list[str] | None = None) -> None:
    """The command line; a mistake prints one line and exits with code 2."""
    shape: Any = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m evorl.curve", description=__doc__, formatter_class=shape)
    parser.add_argument("out", type=Path, help="the picture to write")
    parser.add_argument("runs", nargs="+", help="RUN or LABEL=RUN")
    parser.add_argument("--goal", type=float)
    parser.add_argument("--title", default="")
    with command(arguments) as words:
        given = parser.parse_args(words)
        damages: list[str] = []
        curves = [read(run, damages) for run in given.runs]
        save(draw(curves, given.goal, given.title), given.out)
        print(table(curves, given.goal))
        if damages:
            raise OptionError("; ".join(damages))


if __name__ == "__main__":
    main()
