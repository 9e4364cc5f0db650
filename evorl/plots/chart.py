"""Charts as Vega-Lite specifications with their data, and their rendering by vl-convert."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from evorl import package
from evorl.errors import OptionError, require

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f", "#6a3d9a", "#b2a100")
PICTURES = (".png", ".svg", ".pdf")
SCALE = 1.5  # pixels of a PNG for each pixel of its specification
LARGE = 10_000
DIGITS = 5  # significant digits of numbers in a specification
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
CONFIG = {
    "font": "system-ui, sans-serif",
    "background": "white",
    "view": {"stroke": "#ccc"},
    "axis": {"gridColor": "#eee", "titleFontWeight": "normal"},
    "title": {"fontWeight": "normal", "fontSize": 12, "anchor": "start"},
    "legend": {"title": None},
}


@dataclass(frozen=True, eq=False)
class Table:
    """Data of a chart.

    Attributes:
        columns: Lists or arrays [n] by column name. Values that are not finite are missing.
    """

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def to_plain(self) -> dict[str, list[Any]]:
        """Return the columns as values that JSON can represent."""
        return {name: [_to_plain(value) for value in values] for name, values in self.columns.items()}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dict per row."""
        plain = self.to_plain()
        return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart.

    Attributes:
        spec: Vega-Lite specification of a single or a layered view, without data, width and height. Views refer to a
            table by {"data": {"name": NAME}}.
        tables: Tables by name; "rows" is that of the whole chart.
        title: Title above the chart; empty for none.
        height: Height of the plot area, in pixels.
        groups: Colors by group, for charts with a column "group".
        is_wide: True for a chart that takes a whole row of a page.
    """

    spec: Mapping[str, Any]
    tables: Mapping[str, Table]
    title: str = ""
    height: int = 220
    groups: Mapping[str, str] = field(default_factory=dict)
    is_wide: bool = False

    def to_view(self, **options: Any) -> dict[str, Any]:
        """Return the specification without data, with other properties of the view such as its width."""
        title = {"title": {"text": self.title}} if self.title else {}
        return {"data": {"name": "rows"}, **self.spec, **title, "height": self.height, **options}


def _to_plain(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def assign_colors(groups: Sequence[str]) -> dict[str, str]:
    """Return a color for each group, in their order; after ten groups, the colors repeat."""
    return {group: PALETTE[i % len(PALETTE)] for i, group in enumerate(groups)}


def color_by_group(groups: Mapping[str, str]) -> dict[str, Any]:
    """Return the color encoding of a chart with a column "group"."""
    return {
        "field": "group",
        "type": "nominal",
        "scale": {"domain": list(groups), "range": list(groups.values())},
        "legend": None,
    }


def axis(field: str, title: str, kind: str = "quantitative", **options: Any) -> dict[str, Any]:
    """Return the encoding of a position; quantitative axes need not contain 0."""
    scale = options.pop("scale", {})
    if kind == "quantitative" and scale.get("type") != "log":
        scale = {"zero": False} | scale
    return {"field": field, "type": kind, "title": title, **({"scale": scale} if scale else {}), **options}


def choose_format(values: Any) -> dict[str, str]:
    """Return the format of an axis: with k and M for large numbers."""
    return {"format": "~s"} if max(values, default=0) >= LARGE else {}


def tooltip(**titles: str) -> list[dict[str, Any]]:
    """Return the values that appear under the pointer, from titles by column."""
    return [{"field": name, "title": title, "type": "nominal"} for name, title in titles.items()]  # text or numbers


def join_charts(charts: Sequence[Chart], columns: int, width: int, title: str = "") -> dict[str, Any]:
    """Return one complete specification of several charts, in rows of `columns`.

    The last of consecutive charts with the same groups has their legend.
    """
    datasets, views = {}, []
    for i, chart in enumerate(charts):
        names = {name: f"{name}{i}" for name in chart.tables}
        datasets |= {names[name]: table.to_rows() for name, table in chart.tables.items()}
        view = _rename_data(chart.to_view(width=width), names)
        is_last = i == len(charts) - 1 or charts[i + 1].groups != chart.groups
        views.append(_with_legend(view) if chart.groups and is_last else view)
    joined = views[0]
    if len(views) > 1:
        joined = {"concat": views, "columns": columns, "resolve": {"scale": {"color": "independent"}}}
    whole = {"title": {"text": title}} if title else {}
    return {"$schema": SCHEMA, **joined, **whole, "datasets": datasets, "config": CONFIG}


def _rename_data(node: Any, names: Mapping[str, str]) -> Any:
    """Return a specification with other names of its tables."""
    if isinstance(node, list):
        return [_rename_data(one, names) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {"name": names[value["name"]]} if key == "data" and "name" in value else _rename_data(value, names)
        for key, value in node.items()
    }


def _with_legend(view: dict[str, Any]) -> dict[str, Any]:
    color = view["encoding"]["color"]
    shown = {key: value for key, value in color.items() if key != "legend"} | {
        "legend": {"orient": "bottom", "columns": 3, "symbolOpacity": 1}
    }
    return view | {"encoding": view["encoding"] | {"color": shown}}


def vl_convert() -> Any:
    """Return the package vl_convert; raise OptionError if it is missing."""
    try:
        import vl_convert  # pyright: ignore[reportMissingImports]  an extra
    except ImportError as error:
        raise OptionError(f"vl-convert-python is missing; {package.install_command('plot')}") from error
    return vl_convert


def render(charts: Sequence[Chart], kind: str, columns: int = 1, width: int = 360, title: str = "") -> bytes:
    """Render charts as one picture.

    Args:
        charts: The charts.
        kind: "png", "svg" or "pdf".
        columns: Number of charts in a row.
        width: Width of the plot area of each chart, in pixels.
        title: Title of the picture.

    Returns:
        The content of the file.

    Raises:
        OptionError: vl-convert-python is missing.
    """
    spec = json.dumps(join_charts(charts, columns, width, title))
    convert = getattr(vl_convert(), f"vegalite_to_{kind}")
    if kind == "png":
        smaller = io.BytesIO()
        Image.open(io.BytesIO(convert(spec, scale=SCALE))).convert("RGB").save(smaller, "PNG", optimize=True)
        return smaller.getvalue()
    found = convert(spec)
    return found.encode() if isinstance(found, str) else found


def save_charts(charts: Sequence[Chart], out: Path, columns: int = 1, width: int = 360, title: str = "") -> None:
    """Write charts as one picture, PNG, SVG or PDF by the suffix of the file (see `render`).

    Raises:
        OptionError: vl-convert-python is missing, or the file has another suffix or cannot be written.
    """
    require(out.suffix in PICTURES, "out", out, f"must end with {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    content = render(charts, out.suffix[1:], columns, width, title)
    try:
        out.write_bytes(content)
    except OSError as error:
        raise OptionError(f"out={out}: cannot be written: {error.strerror}") from error
