"""Reports on the runs and sweeps of a command line."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from evorl import package
from evorl.errors import OptionError, escape, require
from evorl.plots.chart import assign_colors
from evorl.reports.curves import Curve, expand_runs, group_by_task, group_curves, read_curve, split_label
from evorl.reports.groups import name_by_settings
from evorl.reports.page import Report, Section, Text
from evorl.reports.policies import describe_fronts, draw_policies
from evorl.reports.sections import RESULTS, make_sections
from evorl.reports.sweeps import describe_sweep
from evorl.sweeps.database import is_sweep
from evorl.training.records.rows import JSON_LINES


def build_report(
    paths: Sequence[str],
    damages: list[str],
    goal: float | None = None,
    title: str | None = None,
    policies: bool = True,
    trust: Sequence[str] = (),
) -> Report:
    """Return the report on runs and sweeps.

    Args:
        paths: Runs, LABEL=RUN, patterns of runs, folders with runs, and sweeps.
        damages: List to which lines about damaged runs are appended.
        goal: Return to mark in the charts; None for none.
        title: Title of the page; None for one from the tasks.
        policies: True to draw an episode of the best policy of each task.
        trust: Packages whose classes the configurations of the runs may name.

    Returns:
        The report.

    Raises:
        OptionError: No path has an evaluation, or two runs with one label differ.
    """
    expanded = list(dict.fromkeys(run for path in paths for run in expand_folders(path)))
    sweeps = [path for path in expanded if is_sweep(Path(path))]
    runs = [path for path in expanded if path not in sweeps]
    sections: list[Section] = []
    for sweep in sweeps:
        try:
            section, best = describe_sweep(Path(sweep), trust, damages)
        except OptionError as error:
            damages.append(str(error))
            continue
        sections.append(section)
        name = f"{escape(Path(sweep).resolve().name).replace('=', ' ')} " * (len(sweeps) > 1)
        runs += [f"{name}{label}={run}" for label, run in best.items() if (run / JSON_LINES).is_file()]
    found = name_by_settings(group_by_task(group_curves(_read_curves(runs, damages)))) if runs else {}
    found = {task: sorted(curves, key=_sort_key, reverse=True) for task, curves in found.items()}
    if not found and not sections:
        raise OptionError(damages[0])
    colors = assign_colors([*dict.fromkeys(curve.label for curves in found.values() for curve in curves)])
    if found:
        sections += make_sections(found, colors, goal)
        sections += describe_fronts(found, trust)
    if found and policies:
        results = next(i for i, section in enumerate(sections) if section.title == RESULTS)
        sections.insert(results + 1, draw_policies(found, trust))
    count = sum(len(set(curve.runs)) for curves in found.values() for curve in curves)
    head = [
        Text(f"{count} runs in {len(colors)} groups, {len(found)} tasks; evorl {package.versions()['evorl']}", "note")
    ]
    head += [Text(escape(damage), "warning") for damage in damages]
    titles = [*found] or [escape(Path(sweep).resolve().name) for sweep in sweeps]
    name = title or f"Report: {', '.join(titles[:4])}{' and more' if len(titles) > 4 else ''}"
    return Report(name, head, colors, sections)


def _sort_key(curve: Curve) -> float:
    mean = float(curve.returns[-1].mean())
    return mean if mean == mean else float("-inf")


def expand_folders(path: str) -> Iterator[str]:
    """Yield the runs and sweeps of an argument: of a pattern, and of a folder that contains runs.

    Raises:
        OptionError: A pattern matches nothing, or a folder is neither a run nor a sweep and contains none.
    """
    for one in expand_runs(path):
        label, folder = split_label(one)
        place = Path(folder)
        if (place / JSON_LINES).is_file() or is_sweep(place) or not place.is_dir():
            yield one
            continue
        inside = sorted(entry for entry in place.iterdir() if (entry / JSON_LINES).is_file() or is_sweep(entry))
        if not inside and one != path:  # one of several matches of a pattern, which is named as damaged
            yield one
            continue
        require(bool(inside), "run", place, f"has no {JSON_LINES} and contains no runs")
        yield from (f"{label}={entry}" if label else str(entry) for entry in inside)


def _read_curves(runs: Sequence[str], damages: list[str]) -> list[Curve]:
    """Return the curves of the runs that can be read; the others are named in `damages`."""
    curves = []
    for run in runs:
        try:
            curves.append(read_curve(run, damages))
        except OptionError as error:
            damages.append(str(error))
    return curves
