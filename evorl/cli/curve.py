"""python -m evorl.curve [OUT] RUN ...: plots learning curves, and prints a Markdown table of the final evaluations.

A curve is the mean return over seeds, with a 95 % confidence interval (Student's t) if there are three seeds or more.
The table also has the interquartile mean (IQM). Runs that differ only in their seeds form one curve, and so do runs
with the same LABEL, which must not differ in anything else. Each environment, with its options and wrappers, has its
own panel. Damaged rows are skipped; the last line then says so, and the exit code is 2.

python -m evorl.curve curve.png runs/a runs/b
python -m evorl.curve docs/curve.png CEM-RL=runs/a TD3=runs/b goal=950 title="Brax inverted_pendulum"
python -m evorl.curve curve.png TD3=runs/td3_seed_* PPO=runs/ppo*

OUT is curve.png if the first argument is a run. Folders may contain *, ? and [...], also after LABEL=, where the shell
does not expand them.

  goal=            a return; the table says after how many minutes all seeds reached it
  title=           title of the figure
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evorl.command import command, require_words, split_options, wants_help
from evorl.errors import OptionError
from evorl.plots.chart import Chart, assign_colors, save_charts
from evorl.reports.charts import plot_learning_curves
from evorl.reports.curves import Curve, expand_runs, group_by_task, group_curves, read_curve
from evorl.reports.tables import format_markdown, make_final_table

DEFAULT_OUT = "curve.png"


def split_out(paths: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the output file and the runs; the file is curve.png if the first argument is a run."""
    first = Path(paths[0])
    if "=" in paths[0] or first.is_dir() or not first.suffix:
        return Path(DEFAULT_OUT), list(paths)
    return first, list(paths[1:])


def draw_curves(found: Mapping[str, Sequence[Curve]], goal: float | None) -> list[Chart]:
    """Return a chart over steps and one over minutes for each environment."""
    colors = assign_colors([*dict.fromkeys(curve.label for curves in found.values() for curve in curves)])
    charts = []
    for environment, curves in found.items():
        steps, minutes = plot_learning_curves(curves, colors, goal)
        charts += [replace(steps, title=environment) if len(found) > 1 else steps, minutes]
    return charts


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        paths, options = split_options(words, {"goal": float, "title": str}, labels=True)
        usage = "give a picture and runs: python -m evorl.curve OUT RUN ..."
        require_words(bool(paths), "runs", paths, usage)
        out, entrants = split_out(paths)
        require_words(bool(entrants), "out", paths, usage)
        entrants = [*dict.fromkeys(run for one in entrants for run in expand_runs(one))]
        goal = options.get("goal")
        damages: list[str] = []
        found = group_by_task(group_curves([read_curve(run, damages) for run in entrants]))
        save_charts(draw_curves(found, goal), out, columns=2, title=options.get("title", ""))
        if len(found) > 1:
            print(f"{len(found)} environments with different returns: one row of charts for each\n")
        print(format_markdown(make_final_table(found, goal)))
        if str(out) not in paths:
            print(out)
        if damages:
            raise OptionError("; ".join(damages))
