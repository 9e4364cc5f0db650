"""What a training says at its end."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evorl import package
from evorl.envs.games.tree import GameTree
from evorl.leagues.exact import exploitability
from evorl.leagues.tables import uniform
from evorl.training.configuration import known, parts
from evorl.training.progress import Budget, Progress
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.reference import Return, outcome, rivals, verdict
from evorl.types import Acts, Evolves, Fills, Finds, Population


@runtime_checkable
class Solves(Protocol):
    """A workflow whose return is minus an exploitability, or where the game has no tree none of play as it is."""

    @property
    def tree(self) -> GameTree | None:
        """That of the game; None where it has none."""
        ...


def conclusion(
    workflow: Any,
    data: Mapping[str, Any],
    progress: Progress,
    budget: Budget,
    run_dir: Path,
    go_on: str,
    found: Iterable[str] = (),
) -> Iterator[str]:
    """Lines: its returns beside random ones, what was found, where it is saved, how to see it and how it goes on."""
    if progress.last is not None:
        yield outcome(progress, env := parts.evaluated(data) or parts.played(data))
        solves = solving(workflow) if data.get("eval_env") is None else None
        if solves is None:
            yield verdict(Return.of(progress.last), env)
        elif solves.tree is not None:
            at_random = float(exploitability(solves.tree, uniform(solves.tree)))
            yield verdict(Return.of(progress.last), env, at_random)
    yield from found
    yield f"saved in {run_dir}"
    needs = known.packages(data)
    if isinstance(workflow, (Acts, Finds, Population)):
        yield f"see it with: {package.suggested('play', str(run_dir), trust=needs)}"
    for group in rivals(workflow.env) if isinstance(workflow, Acts) else []:
        play = package.suggested("play", str(run_dir), "against=random", f"group={group}", trust=needs)
        yield f"what {group} has learned: {play}"
    yield further(workflow, budget, progress.iteration, go_on)


def solving(workflow: Any) -> Solves | None:
    """The workflow that solves a game, where one does."""
    while isinstance(workflow, (Population, Evolves)):
        workflow = workflow.inner if isinstance(workflow, Population) else workflow.population
    return workflow if isinstance(workflow, Solves) else None


def further(workflow: Any, budget: Budget, iterations: int, go_on: str) -> str:
    """How a training of so many iterations goes on, for as long again or until it is full."""
    most = workflow.most_iterations if isinstance(workflow, Fills) else math.inf
    if iterations >= most:
        return f"full after {most} iterations; a new training with a larger agent.workflow.capacity has room for more"
    return f"go on with: {go_on} {' '.join(f'{name}={limit:g}' for name, limit in budget.doubled(most).items())}"


def left_of(checkpoints: Checkpoints, run_dir: Path, trust: Sequence[str]) -> str:
    """Return what is left of a run that has diverged, and the packages to trust whoever begins with it."""
    if checkpoints.latest is None:
        return "it had no checkpoint yet"
    words = f"init_from={run_dir}" + (f" trust=[{','.join(trust)}]" if trust else "")
    return f"its last checkpoint is of iteration {checkpoints.latest}: {words} begins with its best policy"
