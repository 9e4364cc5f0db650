"""Charts of the members of a population over generations, and of what they found."""

import colorsys
from typing import Any

import numpy as np

from evorl.plots.chart import Chart, Table, axis, tooltip
from evorl.population.lineage import GenerationTable, ancestry, branches, choose_axis_scale

MAX_POINTS = 6000  # of a chart; more generations are thinned
GOLDEN = 0.618  # neighbors get different hues
STATISTICS = {"max": (np.nanmax, [5, 3]), "median": (np.nanmedian, [1, 0]), "min": (np.nanmin, [2, 2])}


def plot_population(found: dict[str, GenerationTable]) -> list[Chart]:
    """Plot how a population evolved.

    Args:
        found: Values of the members in each generation by name, [generations, n] (`member_history`).

    Returns:
        The lanes of the members with their parents, if members take over from others, then the fitness, then each
        searched hyperparameter.
    """
    found, numbers = thin_generations(found, MAX_POINTS)
    source, charts = found.get("source"), []
    if source is not None:
        generations, n = source.shape
        lanes = np.broadcast_to(np.arange(n), (generations, n))
        left = len(set(ancestry(source)[-1].tolist()))
        charts.append(
            _plot_members(
                f"member ({left} of {n} founders left)", numbers, source, lanes, "linear", opacity=1, reverse=True
            )
        )
    charts.append(_plot_fitness(numbers, source, found["fitness"]))
    for name, values in found.items():
        if name not in ("fitness", "source"):
            label, shown, scale = choose_axis_scale(name, values)
            charts.append(_plot_members(label, numbers, source, shown, scale, opacity=0.7))
    return charts


def thin_generations(found: dict[str, GenerationTable], limit: int) -> tuple[dict[str, GenerationTable], np.ndarray]:
    """Keep every k-th generation, so that a table has at most about `limit` values.

    Parents are those of the last generation that is kept.

    Returns:
        The tables, and the numbers of their generations, from 1.
    """
    generations, n = next(iter(found.values())).shape
    stride = max(1, -(-generations * n // limit))
    at = np.arange(0, generations, stride)
    kept = {name: values[at] for name, values in found.items() if name != "source"}
    if "source" in found:
        rows = []
        for first in at:
            parents = np.arange(n)
            for step in found["source"][first : first + stride][::-1]:
                parents = step[parents]
            rows.append(parents)
        kept["source"] = np.stack(rows)
    return kept, at + 1


def founder_colors(n: int) -> np.ndarray:
    """Return a color for each of n founders."""
    colors = (colorsys.hsv_to_rgb(i * GOLDEN % 1, 0.75, 0.75) for i in range(n))
    return np.array([f"#{''.join(f'{int(255 * part):02x}' for part in color)}" for color in colors])


def _plot_members(
    label: str,
    numbers: np.ndarray,
    source: GenerationTable | None,
    values: GenerationTable,
    scale: str,
    opacity: float,
    reverse: bool = False,
) -> Chart:
    """Plot the values of all members, with a line from each parent to its child in the color of their founder."""
    generations, n = values.shape
    at = np.broadcast_to(numbers[:, None], values.shape)
    members = np.broadcast_to(np.arange(n), values.shape)
    colors = np.full(values.shape, "#0072b2")
    tables = {}
    if source is not None:
        founders = ancestry(source)
        colors = founder_colors(n)[founders[:generations]]
        ends = branches(source[:-1], values)
        sides = {name: ends[..., i, j].ravel() for name, i, j in (("y", 0, 1), ("y2", 1, 1))}
        x, x2 = (np.broadcast_to(part[:, None], (generations - 1, n)).ravel() for part in (numbers[:-1], numbers[1:]))
        tables["lines"] = Table({"x": x, **sides, "x2": x2, "color": colors[1:].ravel()})
    columns = {"x": at.ravel(), "y": values.ravel(), "member": members.ravel(), "color": colors.ravel()}
    y = axis(
        "y",
        label,
        scale={"type": scale, "reverse": reverse},
        axis={"tickMinStep": 1, "labelLimit": 60} if reverse else {},
    )
    x_axis = axis("x", "generation", axis={"tickMinStep": 1})
    color = {"field": "color", "type": "nominal", "scale": None}
    layers: list[dict[str, Any]] = []
    if "lines" in tables and len(tables["lines"]):
        encoding = {"x": x_axis, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}, "color": color}
        layers.append({"data": {"name": "lines"}, "mark": {"type": "rule", "opacity": opacity}, "encoding": encoding})
    shown = tooltip(x="generation", member="member", y=label)
    layers.append(
        {
            "mark": {"type": "point", "filled": True, "size": 10, "opacity": opacity},
            "encoding": {"x": x_axis, "y": y, "color": color, "tooltip": shown},
        }
    )
    return Chart({"layer": layers}, {"rows": Table(columns), **tables}, height=max(120, 12 * n) if reverse else 140)


def _plot_fitness(numbers: np.ndarray, source: GenerationTable | None, fitness: GenerationTable) -> Chart:
    """Plot the fitness of all members in faint colors, and its minimum, median and maximum in black."""
    chart = _plot_members("fitness", numbers, source, fitness, "linear", opacity=0.35)
    whole = np.isfinite(fitness).any(1)
    columns: dict[str, list[Any]] = {"x": [], "y": [], "name": []}
    for name, (statistic, _) in STATISTICS.items():
        columns["x"] += list(numbers[whole])
        columns["y"] += list(statistic(fitness[whole], axis=1)) if whole.any() else []
        columns["name"] += [name] * int(whole.sum())
    dash = {"field": "name", "type": "nominal", "sort": list(STATISTICS), "legend": {"orient": "right"}}
    dash["scale"] = {"domain": list(STATISTICS), "range": [style for _, style in STATISTICS.values()]}
    encoding = {"x": axis("x", "generation"), "y": axis("y", "fitness"), "strokeDash": dash}
    layer = {
        "data": {"name": "ends"},
        "mark": {"type": "line", "color": "black", "strokeWidth": 1.3},
        "encoding": encoding,
    }
    spec = {"layer": [*chart.spec["layer"], layer]}
    return Chart(spec, {**chart.tables, "ends": Table(columns)}, height=180)
