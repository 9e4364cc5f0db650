"""Results of a sweep: summary lines, an HTML report, and the best trial as an experiment."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evorl import package
from evorl.errors import OptionError, is_number, require
from evorl.reports.page import Grid, Report, Section, Text, render_page
from evorl.sweeps import experiment
from evorl.sweeps.definition import SweepDefinition, open_sweep
from evorl.sweeps.plots import MIN_TRIALS, plot_trials
from evorl.sweeps.space import format_value, shorten_name
from evorl.sweeps.store import SweepStore, get_trial_folder, require_any_success
from evorl.sweeps.trials import FAILED, RUNNING, STOPPED, SweepTrial
from evorl.sweeps.worker_pool import describe_trial, find_best_trial, format_values
from evorl.training.configuration import config
from evorl.training.records import files

REPORT_NAME = "report.html"
MAX_RUNS = 8  # trials whose learning curves are in a report
MAX_ROWS = 500  # of the table of trials, the best first


def write_report(store: SweepStore, definition: SweepDefinition, name: Any = None) -> Iterator[str]:
    """Write the report, and the best trial as an experiment if `name` is given; yield summary lines.

    Raises:
        OptionError: If all trials have failed, or none has ended with a finite score; after the report is
            written, also if a trial is damaged.
    """
    whole, damage = store.read_intact_trials(definition.space)
    trials = require_any_success(whole)
    top = find_best_trial(trials)
    none = "no trial has ended yet"
    if any(one.state != RUNNING for one in trials):
        none = f"no trial has a finite {definition.score}"
    require(top is not None, "sweep", store.folder, none)
    assert top is not None
    counts = {state: sum(one.state == state for one in trials) for state in (RUNNING, STOPPED, FAILED)}
    found = f"{len(trials)} trials" + "".join(f", {count} {state}" for state, count in counts.items() if count)
    yield found
    told = f"best: trial {top.number}, {describe_trial(top, definition)}: {format_values(top.values)}"
    yield told
    yield _write_page(store, definition, trials, f"{found}; {told}")
    run, needs = str(get_trial_folder(store.folder, top.number)), definition.packages
    yield f"watch the best: {package.format_command('play', run, trust=needs)}"
    if name is not None:
        path = experiment.write_experiment(definition, top, name)
        yield f"written: {path}; {package.format_command('train', f'experiment={name}')}"
    else:
        again = package.format_command("sweep", "report", str(store.folder), "experiment=NAME", trust=needs)
        yield f"write the best as an experiment: {again}"
    if damage:
        raise damage[0]


def _write_page(store: SweepStore, definition: SweepDefinition, trials: Sequence[SweepTrial], found: str) -> str:
    """Write the HTML page, and return a line that says where it is."""
    title = f"A sweep of {config.format_title(definition.base)}"
    section = _describe_trials(definition, trials, found)
    try:
        page = render_page(Report(title, sections=[section]))
    except OptionError as error:
        return f"no report: {error}"
    files.write_atomically(store.folder / REPORT_NAME, page)
    return f"report: {store.folder / REPORT_NAME}"


def describe_sweep(folder: Path, trust: Sequence[str], damages: list[str]) -> tuple[Section, dict[str, Path]]:
    """Return the section of a sweep for a report, and the run directories of its best trials by label.

    Args:
        folder: Folder of the sweep.
        trust: Packages whose classes its configuration may name.
        damages: List to which lines about damaged trials are appended.

    Raises:
        OptionError: The folder is no sweep that can be read.
    """
    store, definition = open_sweep(folder, trust, "run")
    try:
        trials, damage = store.read_intact_trials(definition.space)
    finally:
        store.close()
    damages += map(str, damage)
    best = _sort_trials(trials)[:MAX_RUNS]
    section = _describe_trials(definition, trials, f"{folder.name}: {len(trials)} trials")
    return section, {f"trial {one.number}": get_trial_folder(folder, one.number) for one in best if _has_score(one)}


def _has_score(trial: SweepTrial) -> bool:
    return find_best_trial([trial]) is not None


def _sort_trials(trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """Return the trials, the best first and those without a score last."""
    return sorted(trials, key=lambda one: (not _has_score(one), -one.score))


def _describe_trials(definition: SweepDefinition, trials: Sequence[SweepTrial], found: str) -> Section:
    """Return a section with the charts and the table of the trials, the best first."""
    names = list(definition.space.defaults)
    sound = [one for one in trials if _has_score(one)]
    rows = [["trial", definition.score, definition.cost, *map(shorten_name, names), "ended"]]
    for one in _sort_trials(trials)[:MAX_ROWS]:
        values = [f"{x:.6g}" if is_number(x) else format_value(x) for x in map(one.values.get, names)]
        rows.append([str(one.number), f"{one.score:.6g}", f"{one.cost:,.6g}", *values, one.message or one.state])
    if len(trials) > MAX_ROWS:
        found += f"; the table has the best {MAX_ROWS}"
    if len(sound) < MIN_TRIALS:
        found += f"; the importance of the options needs {MIN_TRIALS} trials"
    charts = plot_trials(definition.space, sound, definition.score, definition.cost) if sound else []
    return Section(f"Sweep of {config.format_title(definition.base)}", [Text(found), *charts, Grid(rows)])
