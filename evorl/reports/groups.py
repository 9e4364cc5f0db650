"""Groups of runs: names from the differences of their configurations, and a table of these differences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evorl.errors import escape, to_printable
from evorl.reports.curves import Curve, serialize_values
from evorl.sweeps.space import shorten_name

TASK_SECTIONS = ("env", "eval_env", "wrappers", "problem")
MAX_OPTIONS, MAX_VALUE = 3, 24  # of a name: number of options, and characters of a value
MAX_CELL = 60  # characters of a value in the table


def name_by_settings(found: Mapping[str, Sequence[Curve]]) -> dict[str, list[Curve]]:
    """Name the curves of each task by the agent, and by the options in which curves of one agent differ.

    So one agent has one name in all tasks. Labels from the command line are kept. If a name would be given twice in a
    task, the name of the folder is added.

    Args:
        found: Curves by task.

    Returns:
        The same curves with other labels.
    """
    named = {}
    for task, curves in found.items():
        labels = [curve.label if curve.has_user_label or not curve.cfg else "" for curve in curves]
        by_agent: dict[str, list[Curve]] = {}
        for curve, label in zip(curves, labels, strict=True):
            if not label:
                by_agent.setdefault(str(curve.cfg["agent"]["name"]), []).append(curve)
        names = {}
        for agent, alike in by_agent.items():
            differing = find_differences(alike) if len(alike) > 1 else []
            names |= {id(curve): _name(agent, curve, differing) for curve in alike}
        labels = [label or names[id(curve)] for curve, label in zip(curves, labels, strict=True)]
        counts = Counter(labels)
        named[task] = [
            replace(curve, label=label if counts[label] == 1 else f"{label} ({curve.label})")
            for curve, label in zip(curves, labels, strict=True)
        ]
    return named


def _name(agent: str, curve: Curve, differing: Sequence[str]) -> str:
    if len(differing) > MAX_OPTIONS:
        return f"{escape(agent)} ({curve.label})"
    settings = curve.settings
    values = (
        to_printable(f"{shorten_name(name)}={settings.get(name, 'none')}", MAX_VALUE + len(name)) for name in differing
    )
    return escape(" ".join([agent, *values]))


def find_differences(curves: Sequence[Curve]) -> list[str]:
    """Return the dotted names of the options in which the curves differ, except those of the task."""
    settings = [curve.settings for curve in curves]
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name
        for name in names
        if name.partition(".")[0].partition("[")[0] not in TASK_SECTIONS
        and len({serialize_values(one.get(name)) for one in settings}) > 1
    ]


def make_differences_table(curves: Sequence[Curve], titles: Sequence[str]) -> list[list[str]]:
    """Return a table of the options that all curves have and in which they differ.

    Args:
        curves: Curves of one agent or of several, each with a configuration.
        titles: Title of the column of each curve.

    Returns:
        Rows of cells, one for each option, the first with the titles; empty if nothing differs.
    """
    settings = [curve.settings for curve in curves]
    names = [name for name in find_differences(curves) if all(name in one for one in settings)]
    rows = [[name, *(to_printable(str(one[name]), MAX_CELL) for one in settings)] for name in names]
    return [["option", *titles], *rows] if rows else []
