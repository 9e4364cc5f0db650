"""Charts of a sweep: Pareto front, history, importance of the options, and parallel coordinates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from evorl.plots.chart import PALETTE, Chart, Table, axis, choose_format, tooltip
from evorl.sweeps.gaussian_process import GaussianProcess
from evorl.sweeps.space import SearchSpace, format_value, shorten_name
from evorl.sweeps.trials import STOPPED, SweepTrial, collect_observations, find_pareto_points, subsample_evenly

GRID, SAMPLE = 16, 256  # grid points of a coordinate, samples of the others, for its main effect
CURVE_POINTS, MAX_POINTS = 10, 500  # for the Gaussian process: points of each curve, and in total
MIN_TRIALS = 10  # minimum number of trials for importances
MAX_LINES = 1000  # lines in a chart: the best trials, and points of the curves of all trials


def plot_trials(space: SearchSpace, trials: Sequence[SweepTrial], score: str, cost: str) -> list[Chart]:
    """Plot the trials of a sweep.

    Args:
        space: Search space.
        trials: Trials with a score.
        score: Name of the score.
        cost: Name of the cost.

    Returns:
        Scores over costs, scores over trials, importances of the options (from MIN_TRIALS trials on), and parallel
        coordinates.
    """
    charts = [_plot_costs(trials, score, cost), _plot_history(trials, score)]
    if len(trials) >= MIN_TRIALS:
        charts.append(_plot_importance(space, trials, score))
    return [*charts, _plot_parallel_coordinates(space, trials, score)]


def _plot_costs(trials: Sequence[SweepTrial], score: str, cost: str) -> Chart:
    """Plot scores against costs, with the curve of each trial in light grey and the Pareto front."""
    scores, costs = np.array([x.score for x in trials]), np.array([x.cost for x in trials])
    best = np.flatnonzero(find_pareto_points(scores, costs))
    best = best[np.argsort(costs[best])]
    logarithmic = bool(costs.min() > 0 and costs.max() > 3 * costs.min())
    x = axis("x", cost, scale={"type": "log"} if logarithmic else {}, axis=choose_format(costs))
    y = axis("y", score)
    points = [
        (trial.number, one.cost, one.score)
        for trial in trials
        for one in trial.curve
        if one.cost > 0 or not logarithmic
    ]
    points = points[:: -(-len(points) // (10 * MAX_LINES)) or 1]
    tables = {
        "rows": Table(
            {
                "x": costs,
                "y": scores,
                "number": [x.number for x in trials],
                "state": ["stopped" if x.state == STOPPED else "ended" for x in trials],
            }
        ),
        "curves": Table(dict(zip(("number", "x", "y"), map(list, zip(*points, strict=True)), strict=True))),
        "front": Table({"x": costs[best], "y": scores[best]}),
    }
    shape = {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": ["ended", "stopped"], "range": ["circle", "cross"]},
    }
    layers = [
        {
            "data": {"name": "curves"},
            "mark": {"type": "line", "color": "grey", "opacity": 0.2, "strokeWidth": 0.8},
            "encoding": {"x": x, "y": y, "detail": {"field": "number"}},
        },
        {
            "data": {"name": "front"},
            "mark": {"type": "line", "interpolate": "step-after", "color": "black", "strokeWidth": 1},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 30},
            "encoding": {"x": x, "y": y, "shape": shape, "tooltip": tooltip(number="trial", x=cost, y=score)},
        },
    ]
    return Chart({"layer": layers}, tables, "Score over cost, with the Pareto front")


def _plot_history(trials: Sequence[SweepTrial], score: str) -> Chart:
    """Plot the scores in the order of the trials, and the best score so far."""
    scores = np.array([x.score for x in trials])
    table = Table({"x": [x.number for x in trials], "y": scores, "best": np.maximum.accumulate(scores)})
    x, y = axis("x", "trial", axis={"tickMinStep": 1}), axis("y", score)
    layers = [
        {
            "mark": {"type": "line", "interpolate": "step-after", "color": "black", "strokeWidth": 1},
            "encoding": {"x": x, "y": axis("best", score)},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 30},
            "encoding": {"x": x, "y": y, "tooltip": tooltip(x="trial", y=score)},
        },
    ]
    return Chart({"layer": layers}, {"rows": table}, "History, with the best score so far")


def _plot_importance(space: SearchSpace, trials: Sequence[SweepTrial], score: str) -> Chart:
    """Plot the share of the variance of the score that each option explains alone."""
    shares = compute_main_effects(space, trials)
    names = [shorten_name(one) for one in shares]
    title = f"share of the variance of {score} explained by the option alone"
    encoding = {
        "x": {"field": "share", "type": "quantitative", "title": title},
        "y": axis("name", "", "nominal", sort=names, axis={"title": None}),
        "tooltip": tooltip(name="option", share="share"),
    }
    table = Table({"name": names, "share": list(shares.values())})
    spec = {"mark": {"type": "bar", "color": PALETTE[0]}, "encoding": encoding}
    return Chart(spec, {"rows": table}, "Importance of the options", height=24 * len(names) + 10)


def _plot_parallel_coordinates(space: SearchSpace, trials: Sequence[SweepTrial], score: str) -> Chart:
    """Plot each trial as a line through its values; the axis of each option spans the range of its prior."""
    shown = sorted(trials, key=lambda x: x.score)[-MAX_LINES:]  # the best are drawn on top
    scores = np.array([x.score for x in shown])
    unit = (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)
    names = [shorten_name(one.name) for one in space.parameters] + [score]
    columns: dict[str, list] = {name: [] for name in ("option", "unit", "number", "score", "value")}
    for trial, last in zip(shown, unit, strict=True):
        values = [format_value(trial.values[one.name]) for one in space.parameters]
        columns["option"] += names
        columns["unit"] += [*trial.point, last]
        columns["number"] += [trial.number] * len(names)
        columns["score"] += [trial.score] * len(names)
        columns["value"] += [*values, f"{trial.score:.4g}"]
    ends = [one.prior.bounds for one in space.parameters] + [(float(scores.min()), float(scores.max()))]
    labels: dict[str, list] = {name: [] for name in ("option", "unit", "text")}
    for at, (low, high) in enumerate(ends):
        categories = space.parameters[at].categories if at < space.size else ()
        texts = [((i + 0.5) / len(categories), format_value(value)) for i, value in enumerate(categories)]
        for place, text in texts or [(-0.06, f"{low:.4g}"), (1.06, f"{high:.4g}")]:
            labels["option"].append(names[at])
            labels["unit"].append(place)
            labels["text"].append(text)
    x = {"field": "option", "type": "nominal", "sort": names, "title": None, "axis": {"labelAngle": -20}}
    y = {"field": "unit", "type": "quantitative", "axis": None, "scale": {"domain": [-0.1, 1.1], "nice": False}}
    shown = tooltip(number="trial", option="option", value="value", score=score)
    color = {"field": "score", "type": "quantitative", "title": score, "scale": {"scheme": "viridis", "reverse": True}}
    layers = [
        {
            "mark": {"type": "line", "opacity": 0.6, "strokeWidth": 1},
            "encoding": {"x": x, "y": y, "color": color, "detail": {"field": "number"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 14},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "tooltip": shown,
            },
        },
        {
            "data": {"name": "labels"},
            "mark": {"type": "text", "fontSize": 9},
            "encoding": {"x": x, "y": y, "text": {"field": "text"}},
        },
    ]
    tables = {"rows": Table(columns), "labels": Table(labels)}
    return Chart({"layer": layers}, tables, "Parallel coordinates", height=280, is_wide=True)


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
