"""Pictures of a sweep: its front, its history, which numbers matter, and all trials as lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evorl.command import pyplot, set_whole_ticks
from evorl.sweeps.gaussian_process import GaussianProcess
from evorl.sweeps.space import SearchSpace, format_value, shorten_name
from evorl.sweeps.trials import STOPPED, SweepTrial, collect_observations, find_pareto_points, subsample_evenly

GRID, SAMPLE = 16, 256  # of a coordinate, and of the others, over which an effect is averaged
CURVE_POINTS, MAX_POINTS = 10, 500  # of a trial's curve, and of all together, that a process knows
COLORMAP = "viridis_r"  # the best are dark, as the page is white
MIN_TRIALS = 10  # below which nothing is said about importance
PlotFn = Callable[[SearchSpace, Sequence[SweepTrial], str, str], Any]


def plot_pareto_front(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Scores over costs, each trial's curve faint, and the line of those that none is better than."""
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
    axis.step(costs[best], scores[best], where="post", color="black", linewidth=1, label="front")
    if costs.min() > 0 and costs.max() > 3 * costs.min():
        axis.set_xscale("log")
    return _label_axes(figure, axis, cost, score)


def plot_history(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Scores in the order of trials, and the best so far."""
    del space, cost
    figure, axis = pyplot().subplots(figsize=(6, 4))
    numbers, scores = [x.number for x in trials], np.array([x.score for x in trials])
    axis.scatter(numbers, scores, s=20, label="trial")
    axis.step(numbers, np.maximum.accumulate(scores), where="post", color="black", linewidth=1, label="best so far")
    set_whole_ticks(axis.xaxis)
    return _label_axes(figure, axis, "trial", score)


def plot_importance(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """Draw the share of the score's variance that each option alone explains; nothing of fewer than MIN_TRIALS."""
    del cost
    if len(trials) < MIN_TRIALS:
        return None
    figure, axis = pyplot().subplots(figsize=(6, 1.2 + 0.35 * space.size))
    shares = compute_main_effects(space, trials)
    axis.barh([shorten_name(one) for one in shares], list(shares.values()))
    axis.invert_yaxis()
    return _label_axes(figure, axis, f"share of the variance of {score} that it explains alone", "", legend=False)


def compute_main_effects(space: SearchSpace, trials: Sequence[SweepTrial]) -> dict[str, float]:
    """Of each option the share of variance that its main effect has over the cube, the largest first.

    Of what a Gaussian process expects (first-order Sobol indices, Sobol 1993); those of few trials are guesses.
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
    """Return the variance of the mean along coordinate i."""
    means = []
    for value in (np.arange(GRID) + 0.5) / GRID:
        moved = sample.copy()
        moved[:, i] = value
        means.append(predict(moved).mean())
    return float(np.var(means))


def plot_parallel_coordinates(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> Any:
    """A line for each trial through its values, each option from the lowest to the highest of its prior."""
    del cost
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(max(6, 1.3 * (space.size + 1)), 4))
    scores = np.array([x.score for x in trials])
    unit = (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)
    colours = plt.get_cmap(COLORMAP)(unit)
    order = np.argsort(unit)  # the best above the others
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
    """Draws lines of points (x, y) as one artist, since one for each trial takes ten times as long."""
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
