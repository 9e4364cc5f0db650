"""Results of a sweep: summary lines, plots, an HTML report, and the best trial as an experiment."""

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evorl import package
from evorl.command import pyplot, save_figure
from evorl.errors import OptionError, is_number, require
from evorl.sweeps import experiment
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.plots import MIN_TRIALS, PLOTS
from evorl.sweeps.space import format_value, shorten_name
from evorl.sweeps.store import SweepStore, get_trial_folder, require_any_success
from evorl.sweeps.trials import FAILED, RUNNING, STOPPED, SweepTrial
from evorl.sweeps.worker_pool import describe_trial, find_best_trial, format_values
from evorl.training.configuration import config
from evorl.training.records import files

REPORT_NAME = "report.html"
PAGE_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>body {{ font: 14px sans-serif; margin: 2em; }} img {{ max-width: 48em; width: 100%; display: block; }}
td, th {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }} table {{ border-collapse: collapse; }}
</style></head><body><h1>{title}</h1><p>{found}</p>
{pictures}
<table><tr>{head}</tr>
{rows}
</table></body></html>
"""


def write_report(store: SweepStore, definition: SweepDefinition, name: Any = None) -> Iterator[str]:
    """Write the plots and the report, and the best trial as an experiment if `name` is given; yield summary lines.

    Raises:
        OptionError: If all trials have failed, or none has ended; after the report is written, also if a
            trial is damaged.
    """
    whole, damage = store.read_intact_trials(definition.space)
    trials = require_any_success(whole)
    top = find_best_trial(trials)
    require(top is not None, "sweep", store.folder, "no trial has ended yet")
    assert top is not None
    counts = {state: sum(one.state == state for one in trials) for state in (RUNNING, STOPPED, FAILED)}
    found = f"{len(trials)} trials" + "".join(f", {count} {state}" for state, count in counts.items() if count)
    yield found
    told = f"best: trial {top.number}, {describe_trial(top, definition)}: {format_values(top.values)}"
    yield told
    yield _write_plots(store, definition, trials, f"{found}; {told}")
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


def _write_plots(store: SweepStore, definition: SweepDefinition, trials: Sequence[SweepTrial], found: str) -> str:
    """Write the plots and the HTML page, and return a line that says where they are."""
    try:
        pyplot()
    except OptionError as error:
        return f"no pictures: {error}"
    sound, pictures = [one for one in trials if find_best_trial([one]) is not None], {}
    for name, draw in PLOTS.items():
        path = store.folder / f"{name}.png"
        figure = draw(definition.space, sound, definition.score, definition.cost)
        path.unlink(missing_ok=True)  # do not write through a link
        if figure is None:
            found += f"; {name}: needs {MIN_TRIALS} trials"
            continue
        save_figure(figure, path)
        pictures[name] = base64.b64encode(path.read_bytes()).decode()
    files.write_atomically(store.folder / REPORT_NAME, _render_page(definition, trials, found, pictures))
    return f"pictures: {store.folder / REPORT_NAME}"


def _render_page(
    definition: SweepDefinition, trials: Sequence[SweepTrial], found: str, pictures: Mapping[str, str]
) -> str:
    """Return the HTML page, which loads no other files: the plots, and a table of the trials, the best first."""
    names = list(definition.space.defaults)
    table = [["trial", definition.score, definition.cost, *map(shorten_name, names), "ended"]]
    for one in sorted(trials, key=lambda one: (find_best_trial([one]) is None, -one.score)):
        values = [f"{x:.6g}" if is_number(x) else format_value(x) for x in map(one.values.get, names)]
        table.append([str(one.number), f"{one.score:.6g}", f"{one.cost:,.6g}", *values, one.message or one.state])
    return PAGE_TEMPLATE.format(
        title=html.escape(f"A sweep of {config.format_title(definition.base)}"),
        found=html.escape(found),
        pictures="\n".join(f'<img alt="{name}" src="data:image/png;base64,{x}">' for name, x in pictures.items()),
        head=_render_cells(table[0], "th"),
        rows="\n".join(f"<tr>{_render_cells(row, 'td')}</tr>" for row in table[1:]),
    )


def _render_cells(row: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
