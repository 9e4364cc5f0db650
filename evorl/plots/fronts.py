"""Charts of Pareto fronts and archives."""

from typing import Any

import numpy as np

from evorl.plots.chart import Chart, Table, axis, tooltip

AREA = 40_000  # pixels of an archive that its points cover


def plot_front(front: Any) -> list[Chart]:
    """Plot the first objective of a front against each other one.

    For an archive with one objective, plot the objective over the first two behavior descriptors.

    Args:
        front: The front or archive (`evorl.training.pareto_front.Front`).

    Returns:
        One chart, or one for each further objective.
    """
    if len(front.names) == 1:
        return [_plot_archive(front)] if front.descriptors.shape[1] > 1 else []
    number = np.arange(len(front.values))
    charts = []
    for i, name in enumerate(front.names[1:], 1):
        table = Table({"x": front.values[:, 0], "y": front.values[:, i], "number": number})
        encoding = {
            "x": axis("x", front.names[0]),
            "y": axis("y", name),
            "tooltip": tooltip(number="solution", x=front.names[0], y=name),
        }
        charts.append(Chart({"mark": {"type": "point", "filled": True}, "encoding": encoding}, {"rows": table}))
    return charts


def _plot_archive(front: Any) -> Chart:
    x, y = front.descriptors[:, 0], front.descriptors[:, 1]
    table = Table({"x": x, "y": y, "value": front.values[:, 0], "number": np.arange(len(x))})
    name = front.names[0]
    encoding = {
        "x": axis("x", "descriptor/0"),
        "y": axis("y", "descriptor/1"),
        "color": {
            "field": "value",
            "type": "quantitative",
            "title": name,
            "scale": {"scheme": "viridis"},
            "legend": {"title": name},
        },
        "tooltip": tooltip(number="solution", value=name, x="descriptor/0", y="descriptor/1"),
    }
    mark = {
        "type": "point",
        "shape": "square",
        "filled": True,
        "opacity": 1,
        "size": min(120, AREA / max(front.capacity, 1)),
    }
    return Chart({"mark": mark, "encoding": encoding}, {"rows": table}, height=280)
