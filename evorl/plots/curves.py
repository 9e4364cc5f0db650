"""Charts of returns over steps and time, and of their comparison over tasks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evorl import stats
from evorl.plots.chart import PALETTE, Chart, Table, axis, choose_format, color_by_group, tooltip

RETURN_TITLE = "greedy return, mean and 95 % interval"
MARGIN = 0.15  # of the range of the returns, above and below a chart of curves


def plot_curves(
    curves: Mapping[str, tuple[Any, Any, Any]],
    colors: Mapping[str, str],
    x_title: str,
    y_title: str,
    goal: float | None = None,
    x_scale: str = "linear",
) -> Chart:
    """Plot the mean of each group with its interval.

    The vertical axis spans the values of all seeds; a wider interval leaves the chart.

    Args:
        curves: By group: x [n], values [n, seeds], and interval ends [n, 2].
        colors: Colors by group.
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
        goal: Value of a horizontal line; None for no line.
        x_scale: Scale of the horizontal axis, "linear" or "log".

    Returns:
        The chart.
    """
    columns: dict[str, list[Any]] = {name: [] for name in ("group", "x", "y", "low", "high", "seeds")}
    for group, (x, values, ends) in curves.items():
        columns["group"] += [group] * len(x)
        columns["x"] += list(x)
        columns["y"] += list(values.mean(1))
        columns["low"] += list(ends[:, 0])
        columns["high"] += list(ends[:, 1])
        columns["seeds"] += [values.shape[1]] * len(x)
    known = np.concatenate([values[np.isfinite(values)] for _, values, _ in curves.values()] or [np.zeros(1)])
    known = np.append(known, [] if goal is None else [goal])
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    with np.errstate(over="ignore"):
        margin = MARGIN * (high - low) or 1.0
    domain = {"domain": [float(low - margin), float(high + margin)]} if np.isfinite(margin) else {}
    shown = tooltip(group="group", x=x_title, y="mean", low="lower end", high="upper end", seeds="seeds")
    x_axis = axis("x", x_title, scale={"type": x_scale, "nice": x_scale == "linear"}, axis=choose_format(columns["x"]))
    y_axis = axis("y", y_title, scale={**domain, "nice": False})
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "area", "opacity": 0.18, "clip": True},
            "encoding": {"x": x_axis, "y": y_axis | {"field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "line", "strokeWidth": 1.8, "clip": True}, "encoding": {"x": x_axis, "y": y_axis}},
        {
            "mark": {"type": "point", "filled": True, "size": 18, "clip": True},
            "encoding": {"x": x_axis, "y": y_axis, "tooltip": shown},
        },
    ]
    if goal is not None:
        layers.append(draw_rule("y", goal))
    spec = {"layer": layers, "encoding": {"color": color_by_group(colors)}}
    return Chart(spec, {"rows": Table(columns)}, groups=colors)


def compute_intervals(returns: Iterable[np.ndarray]) -> np.ndarray:
    """Return the 95 % t interval of the mean of each row, [n, 2]; NaN with fewer than three seeds."""
    ends = np.array([stats.mean_interval(values) for values in returns], float).reshape(-1, 2)
    return np.where(np.isfinite(ends), ends, np.nan)


def draw_rule(channel: str, value: float) -> dict[str, Any]:
    """Return a layer with a dashed line at one value of the channel "x" or "y"."""
    mark = {"type": "rule", "strokeDash": [3, 3]}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {channel: {"datum": value}, "color": {"value": "grey"}}}


def plot_profiles(curves: Mapping[str, tuple[Any, Any, Any]], colors: Mapping[str, str], x_title: str) -> Chart:
    """Plot performance profiles: by group, thresholds [n], fractions of runs [n] and interval ends [n, 2]."""
    found = {group: (x, np.asarray(y)[:, None], ends) for group, (x, y, ends) in curves.items()}
    return plot_curves(found, colors, x_title, "fraction of runs above")


def plot_estimates(
    estimates: Mapping[str, tuple[float, float, float]], colors: Mapping[str, str], title: str, x_title: str
) -> Chart:
    """Plot one value with its interval for each group, the highest first.

    Args:
        estimates: Value, lower and upper end by group.
        colors: Colors by group.
        title: Title of the chart.
        x_title: Title of the horizontal axis.

    Returns:
        The chart.
    """
    order = sorted(estimates, key=lambda group: -np.nan_to_num(estimates[group][0], nan=-np.inf))
    table = _make_estimate_table({"group": order}, [estimates[group] for group in order])
    shown = tooltip(group="group", value="value", low="lower end", high="upper end")
    spec = {"layer": _draw_intervals("group", order, x_title, shown), "encoding": {"color": color_by_group(colors)}}
    return Chart(spec, {"rows": table}, title, height=24 * len(order) + 10, groups=colors)


def plot_improvements(pairs: Sequence[tuple[str, str, float, float, float]]) -> Chart:
    """Plot the probability of improvement of pairs: group, other group, probability, lower and upper end."""
    names = [f"{group} > {other}" for group, other, *_ in pairs]
    table = _make_estimate_table({"name": names}, [pair[2:] for pair in pairs])
    x_title, domain = "probability of a higher return", [0, 1]
    shown = tooltip(name="pair", value="probability", low="lower end", high="upper end")
    layers = [*_draw_intervals("name", names, x_title, shown, domain=domain), draw_rule("x", 0.5)]
    return Chart({"layer": layers}, {"rows": table}, height=24 * len(names) + 10)


def _make_estimate_table(names: Mapping[str, Sequence[str]], estimates: Sequence[Sequence[float]]) -> Table:
    values, lows, highs = (list(column) for column in zip(*estimates, strict=True))
    return Table({**names, "value": values, "low": lows, "high": highs})


def _draw_intervals(
    field: str, order: Sequence[str], x_title: str, shown: list[dict[str, Any]], **scale: Any
) -> list[dict[str, Any]]:
    """Return layers with a point and an interval for each row."""
    y = axis(field, "", "nominal", sort=list(order), axis={"title": None, "labelLimit": 150})
    ends = {"x": axis("low", x_title, scale=scale), "x2": {"field": "high"}, "y": y}
    point = {"x": axis("value", x_title, scale=scale), "y": y, "tooltip": shown}
    return [
        {"mark": {"type": "rule", "strokeWidth": 3, "color": PALETTE[0]}, "encoding": ends},
        {"mark": {"type": "point", "filled": True, "size": 60, "color": PALETTE[0]}, "encoding": point},
    ]
