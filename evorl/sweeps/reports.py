"""What a sweep has found: lines, pictures, and its best as an experiment."""

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evorl import package
from evorl.command import pyplot, save
from evorl.errors import OptionError, require
from evorl.sweeps import experiment
from evorl.sweeps.definition import Definition
from evorl.sweeps.pictures import PICTURES
from evorl.sweeps.running import best, came_to, shown
from evorl.sweeps.space import short
from evorl.sweeps.store import Store, checked, folder_of
from evorl.sweeps.trials import FAILED, RUNNING, STOPPED, Trial
from evorl.training.configuration import config
from evorl.training.records import files

NAME = "report.html"
PAGE = """<!doctype html>
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


def written(store: Store, definition: Definition, name: Any = None) -> Iterator[str]:
    """Writes pictures, and an experiment where it has a name; gives lines about what was found.

    Raises OptionError where all trials have failed, or none has ended, and at the end where one is damaged.
    """
    whole, damage = store.whole(definition.space)
    trials = checked(whole)
    top = best(trials)
    require(top is not None, "sweep", store.folder, "no trial has ended yet")
    assert top is not None
    counts = {state: sum(one.state == state for one in trials) for state in (RUNNING, STOPPED, FAILED)}
    found = f"{len(trials)} trials" + "".join(f", {count} {state}" for state, count in counts.items() if count)
    yield found
    told = f"best: trial {top.number}, {came_to(top, definition)}: {shown(top.values)}"
    yield told
    yield _drawn(store, definition, trials, f"{found}; {told}")
    run, needs = str(folder_of(store.folder, top.number)), definition.packages
    yield f"see the best with: {package.suggested('play', run, trust=needs)}"
    if name is not None:
        yield f"written: {experiment.write(definition, top, name)}; {package.suggested('train', f'experiment={name}')}"
    else:
        again = package.suggested("sweep", "report", str(store.folder), "experiment=NAME", trust=needs)
        yield f"as an experiment of your own: {again}"
    if damage:
        raise damage[0]


def _drawn(store: Store, definition: Definition, trials: Sequence[Trial], found: str) -> str:
    """Writes the pictures and the page; where they are."""
    try:
        plt = pyplot()
    except OptionError as error:
        return f"no pictures: {error}"
    sound, pictures = [one for one in trials if best([one]) is not None], {}
    for name, draw in PICTURES.items():
        path = store.folder / f"{name}.png"
        figure = draw(definition.space, sound, definition.score, definition.cost)
        path.unlink(missing_ok=True)  # so that nothing is written where a link leads
        save(figure, path)
        plt.close(figure)
        pictures[name] = base64.b64encode(path.read_bytes()).decode()
    files.replace(store.folder / NAME, _page(definition, trials, found, pictures))
    return f"pictures: {store.folder / NAME}"


def _page(definition: Definition, trials: Sequence[Trial], found: str, pictures: Mapping[str, str]) -> str:
    """All of it in one file that loads nothing: the pictures, and a table of the trials, the best first."""
    names = list(definition.space.defaults)
    table = [["trial", definition.score, definition.cost, *map(short, names), "ended"]]
    for one in sorted(trials, key=lambda one: (best([one]) is None, -one.score)):
        values = [f"{one.values[name]:.6g}" for name in names]
        table.append([str(one.number), f"{one.score:.6g}", f"{one.cost:,.6g}", *values, one.message or one.state])
    return PAGE.format(
        title=html.escape(f"A sweep of {config.title(definition.base)}"),
        found=html.escape(found),
        pictures="\n".join(f'<img alt="{name}" src="data:image/png;base64,{x}">' for name, x in pictures.items()),
        head=_cells(table[0], "th"),
        rows="\n".join(f"<tr>{_cells(row, 'td')}</tr>" for row in table[1:]),
    )


def _cells(row: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
