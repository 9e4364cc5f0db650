"""Sections of a report: results, comparisons over tasks, populations, fronts, pictures and configurations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from evorl import stats
from evorl.errors import OptionError, escape
from evorl.plots.chart import Chart
from evorl.plots.curves import plot_estimates, plot_improvements, plot_profiles
from evorl.plots.lineage import plot_population
from evorl.population.lineage import member_history
from evorl.reports.charts import plot_learning_curves
from evorl.reports.curves import Curve
from evorl.reports.groups import make_differences_table
from evorl.reports.page import Grid, Section, Source, Text
from evorl.reports.tables import format_latex, format_markdown, make_final_table
from evorl.training.records.rows import read_rows

Found = Mapping[str, Sequence[Curve]]  # curves by task
RESULTS = "Final evaluations"
THRESHOLDS = 101
MAX_GROUPS = 8  # in a comparison of pairs
MAX_POPULATIONS, MAX_COLUMNS = 4, 40
INTERVALS = (
    "Intervals are 95 %: Student's t over seeds for means, Wilson's for profiles, Newcombe's score interval for the "
    "probability of improvement, and the stratified bootstrap for the interquartile mean, which is too narrow with few "
    "seeds."
)


def make_sections(found: Found, colors: Mapping[str, str], goal: float | None) -> list[Section]:
    """Return the sections on the returns of runs, of their populations and of their configurations.

    Args:
        found: Curves by task.
        colors: Colors by group.
        goal: Return to mark in the charts; None for none.

    Returns:
        Sections, without empty ones.
    """
    sections = [
        _describe_curves(found, colors, goal),
        _describe_results(found, goal),
        _compare(found, colors),
        *_describe_populations(found),
        _describe_differences(found),
    ]
    return [section for section in sections if section.parts]


def _describe_curves(found: Found, colors: Mapping[str, str], goal: float | None) -> Section:
    parts: list[Any] = []
    for task, curves in found.items():
        steps, minutes = plot_learning_curves(curves, colors, goal)
        parts += [replace(steps, title=task), replace(minutes, title=f"{task}, wall-clock time")]
    return Section("Learning curves", parts)


def _describe_results(found: Found, goal: float | None) -> Section:
    rows = make_final_table(found, goal)
    return Section(
        RESULTS,
        [Grid(rows), Source("Markdown", format_markdown(rows)), Source("LaTeX", format_latex(rows))],
    )


def _compare(found: Found, colors: Mapping[str, str]) -> Section:
    """Compare the groups that have runs in all tasks, with at least three seeds each."""
    scores = _collect_scores(found)
    if len(scores) < 2:
        return Section("", [])
    several = len(found) > 1
    what = "normalized return" if several else "return"
    told = (
        f"Over {len(found)} tasks. In each, 0 is the mean return before training and 1 the highest mean of a group."
        if several
        else "Of the last evaluation of each seed."
    )
    shown = {group: color for group, color in colors.items() if group in scores}
    absent = [escape(group) for group in colors if group not in scores]
    if absent:
        told += f" Not compared, with fewer than {stats.MIN_RUNS} finite returns in a task: {', '.join(absent)}."
    parts: list[Any] = [Text(told, "note")]
    parts.append(_plot_profiles(scores, shown, what))
    parts.append(_plot_means(scores, shown, what))
    if several:
        iqm = {group: (_iqm(tasks), *stats.bootstrap_interval(list(tasks))) for group, tasks in scores.items()}
        parts.append(plot_estimates(iqm, shown, "Interquartile mean", what))
        gap = {group: _optimality_gap(tasks) for group, tasks in scores.items()}
        parts.append(plot_estimates(gap, shown, "Optimality gap (lower is better)", what))
    best = sorted(scores, key=lambda group: -_iqm(scores[group]))[:MAX_GROUPS]
    pairs = [
        (
            a,
            b,
            stats.probability_of_improvement(scores[a], scores[b]),
            *stats.improvement_interval(scores[a], scores[b]),
        )
        for a, b in combinations(best, 2)
    ]
    parts += [replace(plot_improvements(pairs), title="Probability of improvement"), Text(INTERVALS, "note")]
    return Section("Comparison" + " over tasks" * several, parts)


def _collect_scores(found: Found) -> dict[str, list[np.ndarray]]:
    """Return the final scores of each group in each task, [tasks] of [seeds]; with several tasks, normalized.

    Groups that lack a task, or have fewer than three seeds in one, are left out.
    """
    by_task = []
    for curves in found.values():
        finals = {curve.label: curve.returns[-1] for curve in curves if np.isfinite(curve.returns[-1]).all()}
        finals = {label: values for label, values in finals.items() if len(values) >= stats.MIN_RUNS}
        if len(found) > 1 and finals:
            low = float(np.nanmean([np.nanmean(curve.returns[0]) for curve in curves]))
            high = max(float(values.mean()) for values in finals.values())
            finals = {label: (values - low) / (high - low if high > low else 1) for label, values in finals.items()}
        by_task.append(finals)
    shared = [label for label in by_task[0] if all(label in finals for finals in by_task)]
    return {label: [finals[label] for finals in by_task] for label in shared}


def _iqm(tasks: Sequence[np.ndarray]) -> float:
    return float(stats.iqm(np.concatenate(tasks)))


def _optimality_gap(tasks: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Return the mean amount by which scores are below 1, with its t interval (Agarwal et al. 2021, section 4.1)."""
    return _estimate([np.maximum(1 - task, 0) for task in tasks])


def _estimate(tasks: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Return the mean over tasks with its t interval."""
    found = stats.MeanEstimate.from_scores(list(tasks))
    return found.value, *found.interval()


def _plot_means(scores: Mapping[str, Sequence[np.ndarray]], colors: Mapping[str, str], what: str) -> Chart:
    return plot_estimates({group: _estimate(tasks) for group, tasks in scores.items()}, colors, "Mean", what)


def _plot_profiles(scores: Mapping[str, Sequence[np.ndarray]], colors: Mapping[str, str], what: str) -> Chart:
    everything = np.concatenate([task for tasks in scores.values() for task in tasks])
    thresholds = np.linspace(everything.min(), everything.max(), THRESHOLDS)
    curves = {
        group: (
            thresholds,
            stats.performance_profile(list(tasks), thresholds),
            stats.profile_interval(list(tasks), thresholds),
        )
        for group, tasks in scores.items()
    }
    return replace(plot_profiles(curves, colors, what), title="Performance profile")


def _describe_populations(found: Found) -> Iterator[Section]:
    """Yield a section for the first population of each group, of the first seed."""
    count = 0
    for task, curves in found.items():
        for curve in curves:
            if count == MAX_POPULATIONS:
                return
            try:
                if not any("members" in row for row in read_rows(curve.run, "train", most=1).rows):
                    continue
                rows, _ = read_rows(curve.run, "train")
                history = member_history(rows)
                if "fitness" not in history:
                    continue
                charts = plot_population(history)
            except OptionError as error:
                yield Section(f"Population of {curve.label}", [Text(escape(str(error)), "warning")])
                continue
            count += 1
            told = Text(
                f"{task}; the first seed of {escape(str(curve.run))}. A line goes from parent to child.", "note"
            )
            yield Section(f"Population of {curve.label}", [told, *charts])


def _describe_differences(found: Found) -> Section:
    """Describe how the configurations of one agent differ, and then those of all agents in their common options."""
    titled = [(f"{curve.label}, {task}", curve) for task, curves in found.items() for curve in curves if curve.cfg]
    by_agent: dict[str, list[tuple[str, Curve]]] = {}
    for title, curve in titled:
        by_agent.setdefault(str(curve.cfg["agent"]["name"]), []).append((title, curve))
    chosen = {f"Options of {escape(agent)}": one for agent, one in by_agent.items()}
    if len(by_agent) > 1:
        chosen["Options that all have"] = titled
    parts: list[Any] = []
    for title, one in chosen.items():
        shown = one[:MAX_COLUMNS]
        rows = make_differences_table([curve for _, curve in shown], [name for name, _ in shown])
        told = f"{title}, the first {MAX_COLUMNS} of {len(one)} groups" if len(one) > MAX_COLUMNS else title
        parts += [Text(told), Grid(rows)] if rows else []
    return Section("Differences of the configurations", parts)
