"""python -m evorl.lineage RUN: plots how the population of a run evolved.

The figure shows the parent of each member, the fitness, and the searched hyperparameters. Each member has a lane. A
line goes from parent to child, in the color of the first member from which they descend. If no member takes over from
another, as in MetaES, there are only dots.

python -m evorl.lineage runs/pbt seed=3 out=lineage.png

  seed=            one of several seeds; by default the first
  population=0     one of several populations in a run
  trust=[NAME]     packages whose classes the configuration of the run may name
  out=             the file to write; by default RUN/lineage.png

python -m evorl.lineage runs/pbt fork=17@40 run_dir=runs/member

  fork=MEMBER@GENERATION   instead of a figure, makes a member a run of its own, as it was after a generation. The
                           population trains again up to there, and its parents are compared with the recorded ones.
  run_dir=                 the new run folder; by default one in runs/
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evorl import package
from evorl.command import command, require_words, split_options, wants_help
from evorl.errors import OptionError, require
from evorl.plots.chart import save_charts
from evorl.plots.lineage import plot_population
from evorl.population.lineage import GenerationTable, member_history
from evorl.training.configuration import config_file
from evorl.training.records.rows import JSON_LINES, read_rows


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


def _fork(run: Path, options: Mapping[str, Any], trust: Sequence[str]) -> str:
    """Make a member a run of its own, and return what to say about it."""
    from evorl.training.fork import fork_member

    member, _, generation = str(options["fork"]).partition("@")
    is_number = member.isdigit() and generation.isdigit()
    require(is_number, "fork", options["fork"], "must be MEMBER@GENERATION, such as 17@40")
    run_dir = None if options.get("run_dir") is None else Path(options["run_dir"])
    created = fork_member(run, int(member), int(generation), run_dir, options.get("seed"), trust)
    return f"{created}\ntrain it: {package.format_command('train', f'resume={created}', trust=trust)}"


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        kinds = {"seed": int | None, "population": int, "trust": Any, "out": str | None}
        kinds |= {"fork": Any, "run_dir": str | None}
        paths, options = split_options(words, kinds)
        usage = "give one run directory: python -m evorl.lineage RUN"
        require_words(len(paths) == 1, "run", paths, usage)
        run, trust = Path(paths[0]), config_file.parse_trust(options.get("trust", ()))
        if options.get("fork") is not None:
            return print(_fork(run, options, trust))
        found, damage = read_history(run, options.get("seed"), options.get("population", 0), trust)
        out = Path(options.get("out") or run / "lineage.png")
        save_charts(plot_population(found), out, width=640, title=run.name)
        print(out)
        if damage:
            raise OptionError(damage)
