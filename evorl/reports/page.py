"""HTML page of a report: one file that needs no network, with charts that respond to the pointer."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from evorl.plots.chart import CONFIG, Chart, Table, vl_convert

TEMPLATE, SCRIPT = (Path(__file__).parent / name for name in ("page.html", "page.js"))
MAX_SHOWN = 12  # groups that are shown at first
LONG = 28  # characters of a cell that may be broken into lines


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` is "", "note" or "warning"."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Grid:
    """A table whose first row has the titles of the columns."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Source:
    """Text to copy, behind a title that unfolds it."""

    title: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A picture with its caption."""

    caption: str
    mime: str
    content: bytes


Part: TypeAlias = Text | Grid | Source | Picture | Chart


@dataclass(frozen=True)
class Section:
    """A section of a report. Charts and pictures that follow each other are placed in rows."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    """Content of a report.

    Attributes:
        title: Title of the page.
        head: Paragraphs below the title.
        groups: Colors by group, which the reader can switch on and off.
        sections: Sections of the page.
    """

    title: str
    head: Sequence[Text] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()


def render_page(report: Report) -> str:
    """Return the page. All text is escaped, and its content security policy forbids everything that it does not need.

    Raises:
        OptionError: vl-convert-python is missing.
    """
    charts: list[Chart] = []
    body = [f"<h1>{html.escape(report.title)}</h1>", *(_render_part(one, charts) for one in report.head)]
    body.append(_render_groups(report.groups))
    for section in report.sections:
        body.append(f"<section><h2>{html.escape(section.title)}</h2>{_render_parts(section.parts, charts)}</section>")
    data = {
        "charts": [_serialize_chart(chart) for chart in charts],
        "config": CONFIG,
        "hidden": list(report.groups)[MAX_SHOWN:],
    }
    library, script = (_escape_script(text) for text in (vl_convert().javascript_bundle(), SCRIPT.read_text("utf-8")))
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (library, script))
    values = {"HASHES": hashes, "TITLE": html.escape(report.title), "BODY": "\n".join(body)}
    values |= {"DATA": _to_json(data), "LIBRARY": library, "SCRIPT": script}
    return _fill(TEMPLATE.read_text("utf-8"), values)


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each name replaced once, in order; values may contain names."""
    parts = []
    for name, value in values.items():
        before, template = template.split(name, 1)
        parts += [before, value]
    return "".join([*parts, template])


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _escape_script(text: str) -> str:
    """Return JavaScript that cannot end its element; these strings occur only in literals."""
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _to_json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _render_parts(parts: Iterable[Part], charts: list[Chart]) -> str:
    rendered, open_grid = [], False
    for part in parts:
        in_grid = isinstance(part, (Chart, Picture))
        if in_grid != open_grid:
            rendered.append('<div class="grid">' if in_grid else "</div>")
            open_grid = in_grid
        rendered.append(_render_part(part, charts))
    return "\n".join([*rendered, *["</div>"] * open_grid])


def _render_part(part: Part, charts: list[Chart]) -> str:
    match part:
        case Text():
            return f'<p class="{part.kind}">{html.escape(part.text)}</p>'
        case Grid():
            head, *rows = (
                "".join(_render_cell(cell, "td" if i else "th") for cell in row) for i, row in enumerate(part.rows)
            )
            lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
            return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
        case Source():
            return f"<details><summary>{html.escape(part.title)}</summary><pre>{html.escape(part.text)}</pre></details>"
        case Picture():
            source = f"data:{part.mime};base64,{base64.b64encode(part.content).decode()}"
            caption = html.escape(part.caption)
            return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'
        case Chart():
            charts.append(part)
            title = f"<h3>{html.escape(part.title)}</h3>" if part.title else ""
            wide = ' class="wide"' if part.is_wide else ""
            return f'<div{wide}>{title}<div class="chart" data-chart="{len(charts) - 1}"></div></div>'


def _render_cell(cell: str, tag: str) -> str:
    kind = ' class="long"' if len(cell) > LONG and tag == "td" else ""
    return f"<{tag}{kind}>{html.escape(cell)}</{tag}>"


def _render_groups(groups: Mapping[str, str]) -> str:
    """Return a switch for each group, and buttons for all."""
    if len(groups) < 2:
        return ""
    switches = [
        f'<label><input type="checkbox" value="{html.escape(group)}"{" checked" * (i < MAX_SHOWN)}>'
        f'<i style="background:{color}"></i>{html.escape(group)}</label>'
        for i, (group, color) in enumerate(groups.items())
    ]
    buttons = '<button data-all="true">all</button><button data-all="false">none</button>'
    return f'<div id="groups">{buttons}{" ".join(switches)}</div>'


def _serialize_chart(chart: Chart) -> dict[str, Any]:
    """Return the view of a chart, as wide as its place, and its tables by column."""
    view = {name: value for name, value in chart.to_view(width="container").items() if name != "title"}
    if chart.groups and "group" in chart.tables["rows"].columns:
        view |= {
            "params": [{"name": "hidden", "value": []}],
            "transform": [{"filter": "indexof(hidden, datum.group) < 0"}],
        }
    return {"view": view, "tables": {name: _encode(table) for name, table in chart.tables.items()}}


def _encode(table: Table) -> dict[str, Any]:
    """Return the columns of a table; those with text as codes into their distinct values."""
    found: dict[str, Any] = {}
    for name, column in table.to_plain().items():
        if column and all(isinstance(value, str) for value in column):
            codes = {value: i for i, value in enumerate(dict.fromkeys(column))}
            found[name] = {"values": list(codes), "codes": [codes[value] for value in column]}
        else:
            found[name] = column
    return found
