"""python -m evorl.league RUN RUN ...: plays a tournament between runs of one game, each pair in all player positions.

Prints Markdown tables: the mean payoff of each entrant against each other entrant, with standard errors, and ratings.
Elo is fitted by maximum likelihood; the entrant that is paid more wins a game. It says little if the share of cycles is
large. Nash averaging is the payoff against an equilibrium of the entrants, in which copies of an entrant count once.

python -m evorl.league runs/a runs/b random
python -m evorl.league PSRO=runs/a PPO=runs/b random episodes=10000 explore=true out=league

  RUN              or LABEL=RUN, or random for a random policy
  episodes=1000    episodes of each pair in each player position
  seed=0           seed of the episodes
  explore=false    true: all policies explore, as in training, instead of acting greedily
  trust=[NAME]     packages whose classes the configurations may name
  out=             a folder for payoffs.csv, and for payoffs.png with the extra `plot`
  executor=serial  serial: this process; ray: worker processes of Ray (pip install "ray>=2.60"), with the options
                   workers=2, cpus_per_worker=1, gpus_per_worker=0 and address= of evorl.distribute
  parts=           minimum number of batches of episodes, which affects which episodes are played; by default 1, with
                   Ray one per worker
"""

import contextlib
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.command import (
    choose_opengl,
    command,
    require_folder,
    require_words,
    split_options,
    wants_help,
)
from evorl.errors import OptionError, WorkerError, escape, escape_cell, require, require_int, unknown_name_error

if TYPE_CHECKING:
    from evorl.training.tournament import TournamentTable

RANDOM_ENTRANT = "random"
EXECUTORS = "serial", "ray"


@dataclass(frozen=True)
class LeagueOptions:
    """Options of a tournament."""

    episodes: int = 1000
    seed: int = 0
    explore: bool = False
    trust: Any = ()  # as given, before parse_trust checks it
    out: str | None = None
    executor: str = "serial"
    workers: int = 2
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    address: str | None = None
    parts: int | None = None


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        kinds = {field.name: field.type for field in fields(LeagueOptions)}
        runs, options = split_options(words, kinds | {"trust": Any}, labels=True)
        given = LeagueOptions(**options)
        require_int("episodes", given.episodes)
        if given.executor not in EXECUTORS:
            raise unknown_name_error("executor", given.executor, EXECUTORS)
        for name in ("workers", "cpus_per_worker", "gpus_per_worker", "address"):
            used = given.executor == "ray" or getattr(given, name) == getattr(LeagueOptions, name)
            require(used, name, getattr(given, name), "needs executor=ray")
        if given.parts is not None:
            require_int("parts", given.parts)
        require(0 <= given.seed < 2**32, "seed", given.seed, "must be from 0 to 2^32 - 1")
        names = [parse_entrant(word)[0] for word in runs]
        require_words(len(names) > 1, "runs", runs, "give two runs or more: python -m evorl.league RUN RUN ...")
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, "runs", twice[0] if twice else "", "is given twice; use LABEL=RUN to name runs")
        try:
            found = play_tournament(runs, given)
        except WorkerError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        for i, j in np.argwhere(~np.isfinite(found.mean) & ~np.eye(len(names), dtype=bool))[:1]:
            raise OptionError(f"payoff of {names[i]} against {names[j]}={found.mean[i, j]}: must be finite")
        print(format_payoffs(names, found), end="\n\n")
        print(format_ratings(names, found))
        if given.out is not None:
            write_payoffs(Path(given.out), names, found)


def parse_entrant(word: str) -> tuple[str, Path | None]:
    """Return the label and the run of LABEL=RUN, or of RUN with the name of its folder as label.

    The run is None for an entrant that acts randomly.
    """
    label, named, folder = word.partition("=")
    if word == RANDOM_ENTRANT or folder == RANDOM_ENTRANT:
        return label, None
    run = Path(folder if named else word)
    require(bool(label and (folder or not named)), "run", word, "must be RUN or LABEL=RUN")
    return escape(label if named else run.resolve().name), run


def play_tournament(entrants: Sequence[str], given: LeagueOptions) -> "TournamentTable":
    """Load the runs and play the tournament."""
    choose_opengl()
    from evorl.distributed.executors import SerialExecutor
    from evorl.distributed.ray_executor import RayExecutor
    from evorl.distributed.tournament_tasks import TournamentSpec, distribute_tournament
    from evorl.training.configuration.config_file import parse_trust
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.runs import restore_run

    enable_compilation_cache()
    runs = [parse_entrant(word)[1] for word in entrants]
    require(any(runs), "runs", RANDOM_ENTRANT, "must include at least one run")
    for run in runs:
        if run is not None:
            require_folder(run)
    trust = parse_trust(given.trust)
    executor, parts = SerialExecutor(), given.parts or 1
    connected = contextlib.nullcontext()
    if given.executor == "ray":
        executor = RayExecutor(given.workers, given.cpus_per_worker, given.address, given.gpus_per_worker)
        connected, parts = executor.connect_to_ray(), given.parts or given.workers
    with connected:  # before JAX starts threads, since a process with threads should not fork
        policies = [
            None if run is None else restore_run(run, "run", None, trust).select_policy(None, None) for run in runs
        ]
        spec = TournamentSpec(policies, given.episodes, given.seed, given.explore, parts)
        return distribute_tournament(spec, executor)


def format_payoffs(names: list[str], found: "TournamentTable") -> str:
    """Return the payoffs as a Markdown table."""

    def format_cell(i: int, j: int) -> str:
        return "" if i == j else f"{found.mean[i, j]:.3g} ± {found.error[i, j]:.2g}"

    rows = [[name, *(format_cell(i, j) for j in range(len(names)))] for i, name in enumerate(names)]
    return _format_markdown(["payoff against", *names], rows)


def format_ratings(names: list[str], found: "TournamentTable") -> str:
    """Return the ratings as a Markdown table, the best first, and a line about the share of cycles."""
    import jax.numpy as jnp

    from evorl.leagues.ratings import fit_elo, fit_multidimensional_elo, nash_averaging

    ranks = fit_elo(jnp.asarray(found.wins))
    games = found.wins + found.wins.T + np.eye(len(names))
    chances = (found.wins + 0.5) / (games + 1)
    log_odds = np.log(chances / chances.T)
    np.fill_diagonal(log_odds, 0)
    gains = np.where(np.eye(len(names), dtype=bool), 0.0, found.mean - found.mean.T) / 2
    scale = max(float(np.abs(gains).max()), 1e-9)
    earned, weights = nash_averaging(jnp.asarray(gains / scale))
    means = np.nanmean(found.mean, 1)
    order = np.argsort(-np.asarray(ranks.rating), kind="stable")
    rows = [
        [
            names[i],
            f"{ranks.rating[i]:.0f} ± {ranks.standard_error[i]:.0f}",
            f"{means[i]:.3g}",
            f"{scale * earned[i]:.3g}",
            f"{weights[i]:.2f}",
        ]
        for i in order
    ]
    told = _format_markdown(["", "Elo", "mean payoff", "Nash averaging", "Nash weight"], rows)
    cyclic = float(fit_multidimensional_elo(jnp.asarray(log_odds)).cyclic_share)
    return f"{told}\n\n{100 * cyclic:.0f} % of the log-odds are cyclic, which Elo ratings cannot express"


def write_payoffs(folder: Path, names: list[str], found: "TournamentTable") -> None:
    """Write payoffs.csv and payoffs.png into a folder, and print their paths."""
    from evorl.leagues import plots
    from evorl.plots.chart import save_charts

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "payoffs.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["player", "against", "mean", "error", "won", "games"])
            for i, j in zip(*np.nonzero(~np.eye(len(names), dtype=bool)), strict=True):
                numbers = found.mean[i, j], found.error[i, j], found.wins[i, j], found.wins[i, j] + found.wins[j, i]
                writer.writerow([escape_cell(names[i]), escape_cell(names[j]), *numbers])
    except OSError as error:
        raise OptionError(f"out={folder}: cannot be written: {error.strerror}") from error
    print(folder / "payoffs.csv")
    try:
        save_charts([plots.plot_payoffs(found.mean, names, found.error)], folder / "payoffs.png", width=44 * len(names))
        print(folder / "payoffs.png")
    except OptionError as missing:
        print(f"no picture: {missing}")


def _format_markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"|{line}|" if line.startswith("---") else f"| {line} |" for line in lines)
