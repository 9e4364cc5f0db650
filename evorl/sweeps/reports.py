"""What a sweep has found: lines, pictures, and its best as an experiment."""

from collections.abc import Iterator

from evorl.sweeps.definition import Definition
from evorl.sweeps.running import best, came_to, shown
from evorl.sweeps.store import Store, checked, folder_of
from evorl.sweeps.trials import FAILED, RUNNING, STOPPED


def written(store: Store, definition: Definition, experiment: str | None = None) -> Iterator[str]:
    """Lines about what was found; raises OptionError where all trials have failed, or none has ended."""
    trials = checked(store.trials())
    counts = {state: sum(one.state == state for one in trials) for state in (RUNNING, STOPPED, FAILED)}
    told = "".join(f", {count} {state}" for state, count in counts.items() if count)
    yield f"{len(trials)} trials{told}"
    if (top := best(trials)) is not None:
        yield f"best: trial {top.number}, {came_to(top, definition)}: {shown(dict(top.values))}"
        yield f"see it with: python -m evorl.play {folder_of(store.folder, top.number)}"
