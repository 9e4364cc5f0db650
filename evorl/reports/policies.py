"""Policies, fronts and archives of runs, for a report."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from evorl.errors import OptionError, escape
from evorl.plots.fronts import plot_front
from evorl.reports.curves import Curve
from evorl.reports.page import Picture, Section, Text
from evorl.reports.sections import Found
from evorl.training.configuration.config_file import lookup, read_config

MAX_TASKS, MAX_FRONTS = 6, 6
MIMES = {".gif": "image/gif", ".svg": "image/svg+xml", ".png": "image/png"}
MAX_BYTES = 10**6  # of a picture


def draw_policies(found: Found, trust: Sequence[str]) -> Section:
    """Return a section with an episode of the best policy of each task, the best seed of its best group."""
    parts = []
    for task, curves in list(found.items())[:MAX_TASKS]:
        if curves[0].cfg:
            parts.append(_draw_policy(task, curves[0], trust))
    return Section("Best policies", parts)


def _draw_policy(task: str, curve: Curve, trust: Sequence[str]) -> Picture | Text:
    from evorl.command import choose_opengl
    from evorl.training.episodes import draw_episode
    from evorl.training.policy import Policy
    from evorl.training.runs import restore_run

    choose_opengl()
    told = f"{curve.label} on {task}"
    run = curve.find_best_run()
    try:
        policy = Policy(*restore_run(run, "run", None, trust).select_policy(None, None))
        with tempfile.TemporaryDirectory() as folder:
            written = [path for path in draw_episode(policy, Path(folder), 0, False) if path.suffix in MIMES]
            written = [path for path in sorted(written, key=_order) if path.stat().st_size < MAX_BYTES]
            if not written:
                return Text(f"{told}: the environment has no picture", "note")
            return Picture(f"{told}, {escape(run.name)}", MIMES[written[0].suffix], written[0].read_bytes())
    except OptionError as error:
        return Text(f"{told}: {escape(str(error))}", "note")


def _order(path: Path) -> int:
    return list(MIMES).index(path.suffix)


def describe_fronts(found: Found, trust: Sequence[str]) -> Iterator[Section]:
    """Yield a section for the front or archive of the best run of each group that has one."""
    count, known = 0, dict[str, bool]()
    for task, curves in found.items():
        for curve in curves:
            evolver = lookup(curve.cfg, "agent.workflow.evolver._target_", None)
            if count == MAX_FRONTS or evolver is None:
                continue
            run = curve.find_best_run()
            kind = f"{curve.cfg['agent']['name']} {evolver}"
            if kind not in known:
                known[kind] = _keeps_front(run, trust)
            if known[kind]:
                count += 1
                yield _describe_front(task, curve.label, run, trust)


def _keeps_front(run: Path, trust: Sequence[str]) -> bool:
    """Return whether a run searches for a front or an archive; False if it cannot be built."""
    from evorl.training.pareto_front import has_front
    from evorl.training.runs import assemble

    try:
        return has_front(assemble(read_config(run, "run", trust)))
    except OptionError:  # the section on policies says why
        return False


def _describe_front(task: str, label: str, run: Path, trust: Sequence[str]) -> Section:
    from evorl.training.runs import load_front

    title = f"Solutions of {label}"
    try:
        front = load_front(run, trust=trust)
    except OptionError as error:
        return Section(title, [Text(escape(str(error)), "warning")])
    told = Text(f"{task}, {escape(run.name)}: {front}", "note")
    return Section(title, [told, *plot_front(front)])
