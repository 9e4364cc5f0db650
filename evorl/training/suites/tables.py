"""What `python -m evorl.play RUN suite=NAME` prints and gives."""

from collections.abc import Sequence

import jax
import numpy as np

from evorl import stats
from evorl.envs.maze import suite
from evorl.errors import unknown_name_error
from evorl.training.suites.mazes import MazeSuite
from evorl.training.suites.risk import PERCENTS, RiskSuite, bootstrap_curve_interval, compute_risk_curve
from evorl.types import State

SUITES = (*suite.SUITES, "risk")
MEAN, WITHOUT_LARGE = "mean", f"mean without {suite.LARGE_MAZE}"
Cell = tuple[float, float, float]  # a mean and its 95 % interval


def require_suite(name: str) -> None:
    """Raises OptionError where there is no suite of this name."""
    if name not in SUITES:
        raise unknown_name_error("suite", name, SUITES)


def print_maze_table(test: MazeSuite, states: Sequence[State], seed: int) -> dict[str, list[Cell]]:
    """Prints and gives, of each maze and of their means, the solved rate and the return, greedy and sampled.

    Intervals are over the states where there are several, runs with seeds of their own, else over episodes. Before the
    mazes come fresh levels of the kind that it was trained on, which count in no mean.
    """
    play = jax.jit(test.play_episodes, static_argnames="names")
    print(f"| maze | solved, greedy | return | solved, sampled | return |\n|{'---|' * 5}")
    found: dict[str, list[Cell]] = {}
    scores: dict[str, np.ndarray] = {}  # [2 of greedy and 2 of sampled, states, episodes]
    for names in ((suite.AS_TRAINED, *suite.SMALL_MAZES), (suite.LARGE_MAZE,)):
        of_states = []
        for state in states:
            played = jax.device_get(play(state, jax.random.key(seed), names=names))
            of_modes = [played[explores].returns for explores in (False, True)]
            of_states.append([x for returns in of_modes for x in ((returns > 0).astype(float), returns)])
        scores |= dict(zip(names, np.moveaxis(np.array(of_states), (0, 2), (2, 0)), strict=True))
        for name in names:
            found[name] = _print_row(name, [compute_cell(x) for x in scores[name]])
    for title, names in ((MEAN, (*suite.SMALL_MAZES, suite.LARGE_MAZE)), (WITHOUT_LARGE, suite.SMALL_MAZES)):
        together = np.stack([scores[name] for name in names], -1)  # [4, states, episodes, mazes]
        found[title] = _print_row(title, [compute_cell(x) for x in together])
    return found


def compute_cell(scores: np.ndarray) -> Cell:
    """Return the mean of scores and its interval, infinite below three states, or below three episodes of one state.

    Args:
        scores: [states, episodes] or [states, episodes, mazes]. The interval is over states, or of one over its
            episodes, which each maze has of its own. Where scores of one maze are 0 or 1, it is that of a rate.
    """
    if len(scores) > 1:
        scores = scores.reshape(len(scores), -1).mean(1)
    else:
        (scores,) = scores
        if scores.ndim == 1 and np.isin(scores, (0, 1)).all():
            return (scores.mean(), *stats.rate_interval(scores))
    return (scores.mean(), *stats.mean_interval(scores))


def print_risk_table(test: RiskSuite, states: Sequence[State], seed: int) -> dict[float, Cell]:
    """Prints and gives the solved rate on the worst a percent of random levels, by a.

    Intervals are over the states where there are several, which meet the same levels, else over levels.
    """
    rates = [test.compute_solve_rates(state, jax.random.key(seed)) for state in states]
    curves = np.array([compute_risk_curve(*each) for each in rates])
    if len(states) > 1:
        low, high = np.array([stats.mean_interval(column) for column in curves.T]).T
    else:
        low, high = bootstrap_curve_interval(*rates[0])
    how = f"{test.attempts} {'sampled' if test.explores else 'greedy'} episodes on each"
    print(f"{test.levels:,} random levels, ranked by {how} and measured by as many others\n")
    print(f"| worst levels | solved |\n|{'---|' * 2}")
    found = {}
    for a, mean, *ends in zip(PERCENTS, curves.mean(0), low, high, strict=True):
        _print_row(f"{a:g} %", [(mean, *ends)])
        found[a] = (mean, *ends)
    return found


def _print_row(name: str, cells: list[Cell]) -> list[Cell]:
    words = [f"{mean:.2f}" + (f" [{low:.2f}, {high:.2f}]" if np.isfinite(low) else "") for mean, low, high in cells]
    print(f"| {name} | {' | '.join(words)} |", flush=True)
    return cells
