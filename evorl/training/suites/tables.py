"""Tables that `python -m evorl.play RUN suite=NAME` prints and returns."""

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
    """Raise OptionError if there is no suite with this name."""
    if name not in SUITES:
        raise unknown_name_error("suite", name, SUITES)


def print_maze_table(test: MazeSuite, states: Sequence[State], seed: int) -> dict[str, list[Cell]]:
    """Print and return the solved rate and the return of each maze and their means, for greedy and sampled actions.

    With several states (runs with different seeds), the intervals are over the states; with one state, over
    episodes. The first row shows new levels from the training distribution, which are excluded from the
    means.
    """
    play = jax.jit(test.play_episodes, static_argnames="names")
    print(f"| maze | solved, greedy | return | solved, sampled | return |\n|{'---|' * 5}")
    found: dict[str, list[Cell]] = {}
    scores: dict[str, np.ndarray] = {}  # [(solved, return) greedy and sampled = 4, states, episodes]
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
    """Return the mean of scores and its 95 % interval.

    With several states, the interval is over the states. With one state, it is over the episodes, which are
    independent between mazes; if the scores of a single maze are all 0 or 1, it is the interval of a rate. An
    interval of a mean is infinite with fewer than three states, or with fewer than three episodes of one
    state.

    Args:
        scores: Scores, shape [states, episodes] or [states, episodes, mazes].
    """
    if len(scores) > 1:
        scores = scores.reshape(len(scores), -1).mean(1)
    else:
        (scores,) = scores
        if scores.ndim == 1 and np.isin(scores, (0, 1)).all():
            return (scores.mean(), *stats.rate_interval(scores))
    return (scores.mean(), *stats.mean_interval(scores))


def print_risk_table(test: RiskSuite, states: Sequence[State], seed: int) -> dict[float, Cell]:
    """Print and return the solved rate on the worst a % of random levels, by a.

    With several states, the intervals are over the states, which play the same levels; with one state, over
    levels.
    """
    rates = [test.compute_solve_rates(state, jax.random.key(seed)) for state in states]
    curves = np.array([compute_risk_curve(*each) for each in rates])
    if len(states) > 1:
        low, high = np.array([stats.mean_interval(column) for column in curves.T]).T
    else:
        low, high = bootstrap_curve_interval(*rates[0])
    how = f"{test.attempts} {'sampled' if test.explore else 'greedy'} episodes on each"
    print(f"{test.levels:,} random levels, ranked by {how} and evaluated in as many others\n")
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
