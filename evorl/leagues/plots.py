"""Charts of a league: payoffs of policies, their weights, and NashConv. `evorl.plots.chart.save_charts` writes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evorl.plots.chart import Chart, Table, axis, tooltip

MAX_LABELLED = 12  # most policies with text in the cells
DARK = 0.6  # fraction of the largest payoff above which the text of a cell is white
CELL = 34  # pixels


def plot_payoffs(mean: Any, names: Sequence[str], errors: Any = None) -> Chart:
    """Plot the payoff of each row against each column.

    With at most 12 policies, the cells contain the payoffs and their standard errors.

    Args:
        mean: Payoffs of the row players, [n, n].
        names: Names of the policies.
        errors: Standard errors, [n, n]; None without.

    Returns:
        The chart.
    """
    mean, errors = np.asarray(mean, float), None if errors is None else np.asarray(errors, float)
    largest = max(float(np.nanmax(np.abs(mean))), 1e-9)
    columns: dict[str, list[Any]] = {name: [] for name in ("row", "column", "payoff", "text", "ink")}
    for i, j in np.ndindex(*mean.shape):
        error = "" if errors is None else f" ±{errors[i, j]:.2g}"
        columns["row"].append(names[i])
        columns["column"].append(names[j])
        columns["payoff"].append(mean[i, j])
        columns["text"].append(f"{mean[i, j]:.2g}{error}")
        columns["ink"].append("white" if abs(mean[i, j]) > DARK * largest else "black")
    x = axis("column", "", "nominal", sort=list(names), axis={"labelAngle": -45, "title": None})
    y = axis("row", "", "nominal", sort=list(names), axis={"title": None})
    legend = {"title": "payoff of the row player"}
    scale = {"scheme": "redblue", "domain": [-largest, largest]}
    color = {"field": "payoff", "type": "quantitative", "scale": scale, "legend": legend}
    shown = tooltip(row="row", column="column", text="payoff")
    layers: list[dict[str, Any]] = [{"mark": "rect", "encoding": {"x": x, "y": y, "color": color, "tooltip": shown}}]
    if len(names) <= MAX_LABELLED:
        ink = {"field": "ink", "type": "nominal", "scale": None}
        encoding = {"x": x, "y": y, "text": {"field": "text"}, "color": ink}
        layers.append({"mark": {"type": "text", "fontSize": 9}, "encoding": encoding})
    return Chart({"layer": layers}, {"rows": Table(columns)}, height=CELL * len(names))


def plot_iterations(weights: Any, nash_conv: Any = None) -> list[Chart]:
    """Plot one player's weights, and below them NashConv on a logarithmic axis.

    Args:
        weights: Weights of the policies, [iterations, capacity].
        nash_conv: NashConv, [iterations]; None for the weights alone.

    Returns:
        One chart, or two.
    """
    weights = np.asarray(weights, float)
    iterations, capacity = weights.shape
    at, policy = np.indices(weights.shape)
    table = Table({"x": at.ravel(), "policy": policy.ravel(), "weight": weights.ravel()})
    color = {"field": "weight", "type": "quantitative", "scale": {"scheme": "viridis"}, "legend": {"title": "weight"}}
    encoding = {
        "x": axis("x", "iteration", "ordinal", axis={"labelOverlap": True}),
        "y": axis("policy", "policy", "ordinal", sort="descending", axis={"labelOverlap": True}),
        "color": color,
        "tooltip": tooltip(x="iteration", policy="policy", weight="weight"),
    }
    charts = [Chart({"mark": "rect", "encoding": encoding}, {"rows": table}, height=min(24 * capacity, 300))]
    if nash_conv is not None:
        line = Table({"x": np.arange(iterations), "y": np.asarray(nash_conv, float)})
        encoding = {"x": axis("x", "iteration"), "y": axis("y", "NashConv", scale={"type": "log"})}
        charts.append(Chart({"mark": {"type": "line", "point": True}, "encoding": encoding}, {"rows": line}))
    return charts
