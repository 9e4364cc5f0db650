"""Charts of the learning curves of runs."""

from collections.abc import Mapping, Sequence

import numpy as np

from evorl.plots.chart import Chart
from evorl.plots.curves import RETURN_TITLE, compute_intervals, plot_curves
from evorl.reports.curves import Curve
from evorl.training.records.display import ENV_STEPS, EVALUATIONS

MAX_POINTS = 200  # of a curve in a chart


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


def _thin(n: int) -> np.ndarray:
    """Return at most MAX_POINTS indices of n evaluations, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, MAX_POINTS)).round().astype(int))
