"""Plots of a sweep: Pareto front, history, importance of the options, and parallel coordinates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evorl.command import pyplot, set_whole_ticks
from evorl.sweeps.gaussian_process import GaussianProcess
from evorl.sweeps.space import SearchSpace, format_value, shorten_name
from evorl.sweeps.trials import STOPPED, SweepTrial, collect_observations, find_pareto_points, subsample_evenly

GRID, SAMPLE = 16, 256  # grid points of a coordinate, samples of the others, for its main effect
CURVE_POINTS, MAX_POINTS = 10, 500  # for the Gaussian process: points of each curve, and in total
COLORMAP = "viridis_r"  # the best trials are dark, since the page is white
MIN_TRIALS = 10  # minimum number of trials for importances
PlotFn = Callable[[SearchSpace, Sequence[SweepTrial], str, str], Any]


def plot_pareto_front(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Plot scores against costs, with the curve of each trial in light grey and the Pareto front."""
    del space
    figure, axis = pyplot().subplots(figsize=(6, 4))
    curves = [[(x.cost, x.score) for x in trial.curve] for trial in trials]
    _draw_lines(axis, curves, color="grey", alpha=0.2, linewidth=0.8, zorder=0)
    scores, costs = np.array([x.score for x in trials]), np.array([x.cost for x in trials])
    stopped = np.array([x.state == STOPPED for x in trials])
    for mask, marker, label in ((~stopped, "o", "trial"), (stopped, "x", "stopped")):
        if mask.any():
            axis.scatter(costs[mask], scores[mask], marker=marker, s=20, label=label)
    best = np.flatnonzero(find_pareto_points(scores, costs))
    best = best[np.argsort(costs[best])]
    axis.step(costs[best], scores[best], where="post", color="black", linewidth=1, label="Pareto front")
    if costs.min() > 0 and costs.max() > 3 * costs.min():
        axis.set_xscale("log")
    return _label_axes(figure, axis, cost, score)


def plot_history(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Plot the scores in the order of the trials, and the best score so far."""
    del space, cost
    figure, axis = pyplot().subplots(figsize=(6, 4))
    numbers, scores = [x.number for x in trials], np.array([x.score for x in trials])
    axis.scatter(numbers, scores, s=20, label="trial")
    axis.step(numbers, np.maximum.accumulate(scores), where="post", color="black", linewidth=1, label="best so far")
    set_whole_ticks(axis.xaxis)
    return _label_axes(figure, axis, "trial", score)


def plot_importance(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Plot the share of the variance of the score that each option explains alone; None below MIN_TRIALS trials."""
    del cost
    if len(trials) < MIN_TRIALS:
        return None
    figure, axis = pyplot().subplots(figsize=(6, 1.2 + 0.35 * space.size))
    shares = compute_main_effects(space, trials)
    axis.barh([shorten_name(one) for one in shares], list(shares.values()))
    axis.invert_yaxis()
    return _label_axes(
        figure, axis, f"share of the variance of {score} explained by the option alone", "", legend=False
    )


def compute_main_effects(space: SearchSpace, trials: Sequence[SweepTrial]) -> dict[str, float]:
    """Return the share of the variance that the main effect of each option explains, the largest first.

    They are the first-order Sobol indices (Sobol 1993) over the unit cube of the mean of a Gaussian process.
    With few trials they are unreliable.
    """
    known = collect_observations(
        space, trials, CURVE_POINTS, lambda score, cost: subsample_evenly(np.arange(len(score)), MAX_POINTS)
    )
    scale = max(float(np.ptp(known.score)), 1e-9)
    process = GaussianProcess.fit(space.to_features(known.x), (known.score - known.score.mean()) / scale)
    sample = np.random.default_rng(0).uniform(size=(GRID * SAMPLE, space.size))
    predict = lambda u: process.mean(space.to_features(u))  # noqa: E731
    total = max(float(predict(sample).var()), 1e-12)
    shares = {
        one.name: _compute_effect_variance(predict, sample[:SAMPLE], i) / total
        for i, one in enumerate(space.parameters)
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _compute_effect_variance(predict: Callable[[Any], Any], sample: Float[np.ndarray, "n d"], i: int) -> float:
    """Return the variance of the mean prediction along coordinate i."""
    means = []
    for value in (np.arange(GRID) + 0.5) / GRID:
        moved = sample.copy()
        moved[:, i] = value
        means.append(predict(moved).mean())
    return float(np.var(means))


def plot_parallel_coordinates(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Plot each trial as a line through its values; the axis of each option spans the range of its prior."""
    del cost
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(max(6, 1.3 * (space.size + 1)), 4))
    scores = np.array([x.score for x in trials])
    unit = (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)
    colours = plt.get_cmap(COLORMAP)(unit)
    order = np.argsort(unit)  # the best trials are drawn on top
    colours[:, 3] = 0.3 + 0.7 * unit
    lines = [list(enumerate([*trials[i].point, unit[i]])) for i in order]
    _draw_lines(axis, lines, color=colours[order], linewidth=1)
    ends = [one.prior.bounds for one in space.parameters] + [(float(scores.min()), float(scores.max()))]
    for at, (low, high) in enumerate(ends):
        axis.axvline(at, color="grey", linewidth=0.5)
        categories = space.parameters[at].categories if at < space.size else ()
        labels = [((i + 0.5) / len(categories), format_value(value)) for i, value in enumerate(categories)]
        for place, label in labels or ((-0.06, f"{low:.4g}"), (1.02, f"{high:.4g}")):
            axis.text(at, place, label, ha="center", fontsize=7)
    axis.set_xticks(range(space.size + 1), [shorten_name(one.name) for one in space.parameters] + [score], fontsize=7)
    axis.set_yticks([])
    axis.set_ylim(-0.1, 1.1)
    figure.tight_layout()
    return figure


def _draw_lines(axis: Any, lines: Sequence[Any], **how: Any) -> None:
    """Draw lines of points (x, y) as one artist, since one artist for each trial takes ten times as long."""
    from matplotlib.collections import LineCollection  # pyright: ignore[reportMissingImports]  an extra

    axis.add_collection(LineCollection(lines, **how))
    axis.autoscale()


PLOTS: Mapping[str, PlotFn] = {
    "front": plot_pareto_front,
    "history": plot_history,
    "importance": plot_importance,
    "parallel": plot_parallel_coordinates,
}


def _label_axes(figure: Any, axis: Any, x: str, y: str, legend: bool = True) -> Any:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    if legend:
        axis.legend(fontsize=8)
    figure.tight_layout()
    return figure
