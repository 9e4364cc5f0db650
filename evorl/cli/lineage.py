"""python -m evorl.lineage RUN: plots how the population of a run evolved.

The figure shows the parent of each member, the fitness, and the searched hyperparameters. Each member has a lane. A
line goes from parent to child, in the color of the first member from which they descend. If no member takes over from
another, as in MetaES, there are only dots.

python -m evorl.lineage runs/pbt seed=3 out=lineage.png

  seed=            one of several seeds; by default the first
  population=0     one of several populations in a run
  trust=[NAME]     packages whose classes the configuration of the run may name
  out=             the file to write; by default RUN/lineage.png
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.command import command, pyplot, require_words, save_figure, set_whole_ticks, split_options, wants_help
from evorl.errors import OptionError, require
from evorl.population.lineage import GenerationTable, ancestry, branches, choose_axis_scale, member_history
from evorl.training.configuration import config_file
from evorl.training.records.rows import JSON_LINES, read_rows

DARKER = 0.8  # factor on the colors of the color map, some of which are too light for a white page
STATISTICS = {"max": (np.nanmax, "--"), "median": (np.nanmedian, "-"), "min": (np.nanmin, ":")}


def read_history(
    run: Path, seed: int | None, population: int, trust: Sequence[str] = ()
) -> tuple[dict[str, GenerationTable], str]:
    """Return the history of the population of one seed, and a line about skipped rows.

    Args:
        run: Run directory.
        seed: Seed of the run; None for the first.
        population: Index of the population if there are several.
        trust: Packages whose classes the configuration may name.

    Raises:
        OptionError: If the run has no evolving population, or cannot be read.
    """
    if not (run / JSON_LINES).is_file():
        raise OptionError(f"run={run}: has no {JSON_LINES}")
    cfg = config_file.read_config(run, "run", trust)
    first, count = cfg["seed"], cfg["num_seeds"]
    seed = first if seed is None else seed
    require(first <= seed < first + count, "seed", seed, f"must be from {first} to {first + count - 1}")
    rows, damage = read_rows(run, "train")
    found = member_history(rows, seed - first, population)
    if "fitness" not in found:
        raise OptionError(damage or f"run={run}: has no evolving population")
    return found, damage


def draw_branches(axis: Any, source: GenerationTable | None, values: GenerationTable, **style: Any) -> None:
    """Draw the family tree of the members at `values`, shape [generations, n].

    Without `source`, only points are drawn. Otherwise, all generations but the last have children.
    """
    at = np.broadcast_to(np.arange(1, len(values) + 1)[:, None], values.shape)
    if source is None:
        axis.scatter(at, values, color="tab:blue", s=4, **style)
        return
    from matplotlib.collections import LineCollection

    founders = ancestry(source)[: len(values)]
    colours = pyplot().get_cmap("turbo")(np.arange(source.shape[1]) * 0.618 % 1)  # neighbors get different colors
    colours[:, :3] *= DARKER
    lines = branches(source[: len(values) - 1], values).reshape(-1, 2, 2)
    axis.add_collection(LineCollection(list(lines), colors=colours[founders[1:].ravel()], linewidths=1, **style))
    axis.scatter(at.ravel(), values.ravel(), color=colours[founders.ravel()], s=4, **style)


def draw_lanes(axis: Any, source: GenerationTable) -> None:
    """Draw one lane for each member, up to the members after the last generation."""
    generations, n = source.shape
    draw_branches(axis, source, np.broadcast_to(np.arange(n), (generations + 1, n)))
    left = len(set(ancestry(source)[-1].tolist()))
    set_whole_ticks(axis.yaxis)
    axis.set_ylabel(f"member\n({left} of {n} founders left)")
    axis.invert_yaxis()


def draw_fitness(axis: Any, source: GenerationTable | None, fitness: GenerationTable) -> None:
    """Draw the fitness of all members in faint colors, and its minimum, median and maximum in black.

    Generations without a finite fitness have no statistics.
    """
    draw_branches(axis, source, fitness, alpha=0.35)
    whole = np.isfinite(fitness).any(1)
    for name, (statistic, style) in STATISTICS.items():
        values = statistic(fitness[whole], axis=1)
        axis.plot(1 + np.flatnonzero(whole), values, color="black", linestyle=style, linewidth=1.3, label=name)
    axis.set_ylabel("fitness")
    axis.legend(fontsize=8)


def draw_lineage(found: dict[str, GenerationTable], title: str) -> Any:
    """Return the figure with the lanes, the fitness, and each searched hyperparameter."""
    plt = pyplot()
    from matplotlib.ticker import NullFormatter

    source = found.get("source")
    searched = {name: values for name, values in found.items() if name not in ("fitness", "source")}
    heights = [2] * (source is not None) + [1.4] + [1] * len(searched)
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(9, 2 + 1.7 * sum(heights)), sharex=True, squeeze=False, height_ratios=heights
    )
    axes = list(axes[:, 0])
    for axis in axes:
        axis.grid(alpha=0.25)
    axes[0].set_title(title, fontsize=10)
    axes[-1].set_xlabel("generation")
    set_whole_ticks(axes[-1].xaxis)
    if source is not None:
        draw_lanes(axes.pop(0), source)
    draw_fitness(axes.pop(0), source, found["fitness"])
    for axis, (name, values) in zip(axes, searched.items(), strict=True):
        label, shown, scale = choose_axis_scale(name, values)
        draw_branches(axis, source, shown, alpha=0.7)
        axis.set_yscale(scale)
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_ylabel(label.replace(".", ".\n"), fontsize=8)
    figure.align_ylabels()
    figure.tight_layout()
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        kinds = {"seed": int | None, "population": int, "trust": Any, "out": str | None}
        paths, options = split_options(words, kinds)
        usage = "give one run directory: python -m evorl.lineage RUN"
        require_words(len(paths) == 1, "run", paths, usage)
        run, trust = Path(paths[0]), config_file.parse_trust(options.get("trust", ()))
        found, damage = read_history(run, options.get("seed"), options.get("population", 0), trust)
        out = Path(options.get("out") or run / "lineage.png")
        save_figure(draw_lineage(found, run.name), out)
        print(out)
        if damage:
            raise OptionError(damage)
