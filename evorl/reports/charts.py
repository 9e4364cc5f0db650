"""Charts of the learning curves of runs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evorl import stats
from evorl.plots.chart import Chart
from evorl.plots.curves import plot_curves
from evorl.reports.curves import Curve
from evorl.training.records.display import ENV_STEPS, EVALUATIONS

MAX_POINTS = 200  # of a curve in a chart
RETURN_TITLE = "greedy return, mean and 95 % interval"


def plot_learning_curves(curves: Sequence[Curve], colors: Mapping[str, str], goal: float | None = None) -> list[Chart]:
    """Plot the return of each curve, mean over seeds with a 95 % t interval, over steps and over minutes."""
    unit = EVALUATIONS if any(one.cfg.get("problem") for one in curves) else ENV_STEPS
    at = {one.label: _thin(len(one.env_steps)) for one in curves}
    ends = {one.label: compute_intervals(one.returns[at[one.label]]) for one in curves}
    charts = []
    for title, x in ((f"{unit} per seed", "env_steps"), ("minutes for all seeds together", "minutes")):
        found = {
            one.label: (getattr(one, x)[at[one.label]], one.returns[at[one.label]], ends[one.label]) for one in curves
        }
        charts.append(plot_curves(found, colors, title, RETURN_TITLE, goal))
    return charts


def compute_intervals(returns: Iterable[np.ndarray]) -> np.ndarray:
    """Return the 95 % t interval of the mean of each row, [n, 2]; NaN with fewer than three seeds."""
    ends = np.array([stats.mean_interval(values) for values in returns], float).reshape(-1, 2)
    return np.where(np.isfinite(ends), ends, np.nan)


def _thin(n: int) -> np.ndarray:
    """Return at most MAX_POINTS indices of n evaluations, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, MAX_POINTS)).round().astype(int))
