"""Messages at the end of a training."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl import package
from evorl.envs.games.game_tree import GameTree
from evorl.leagues.exact import exploitability
from evorl.leagues.tabular_policies import make_uniform_policy
from evorl.training.configuration import parts, trust_check
from evorl.training.progress import Budget, Progress
from evorl.training.random_baseline import MeanReturn, compare_with_random, describe_outcome, find_unranked_groups
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import Row
from evorl.training.suites.level_episodes import find_acting_workflow
from evorl.types import EvolvingWorkflow, HasMaxIterations, PolicyWorkflow, Population, SearchWorkflow


@runtime_checkable
class GameSolver(Protocol):
    """Protocol of a workflow that solves a game.

    Its return is minus an exploitability. Without a game tree, the return cannot be compared with random
    play.
    """

    @property
    def tree(self) -> GameTree | None:
        """Return the tree of the game; None if it has none."""
        ...


def summarize_training(
    workflow: Any,
    data: Mapping[str, Any],
    progress: Progress,
    budget: Budget,
    run_dir: Path,
    go_on: str,
    found: Iterable[str] = (),
) -> Iterator[str]:
    """Yield lines about the result of a training.

    They report the return next to a random-policy baseline, the solutions found, the run directory, and the
    commands to play and to resume the run.
    """
    if progress.latest_evaluation is not None:
        yield describe_outcome(progress, env := parts.make_eval_env(data) or parts.make_task(data))
        solves = find_game_solver(workflow) if data.get("eval_env") is None else None
        if solves is None:
            yield compare_with_random(MeanReturn.from_evaluation(progress.latest_evaluation), env)
        elif solves.tree is not None:
            at_random = float(exploitability(solves.tree, make_uniform_policy(solves.tree)))
            yield compare_with_random(MeanReturn.from_evaluation(progress.latest_evaluation), env, at_random)
    yield from found
    yield f"saved in {run_dir}"
    needs = trust_check.find_trust_packages(data)
    acts, _ = find_acting_workflow(workflow)
    if isinstance(acts, (PolicyWorkflow, SearchWorkflow, Population)):
        yield f"watch it: {package.format_command('play', str(run_dir), trust=needs)}"
    for group in find_unranked_groups(acts.env) if isinstance(acts, PolicyWorkflow) else []:
        play = package.format_command("play", str(run_dir), "against=random", f"group={group}", trust=needs)
        yield f"policy of {group} against random actions: {play}"
    yield describe_continuation(workflow, budget, progress.iteration, go_on)


def make_result_row(progress: Progress, run_dir: Path, stopped: bool) -> Row:
    """Make the last line of a training's JSON output: its run directory and its results.

    `first`, `last` and `best` are the evaluations before training, at its end, and of the best policies in
    new episodes. Each has `env_steps`, `return`, and the bounds `low` and `high` of the 95 % interval. It is
    None if there was none.
    """
    return {
        "kind": "result",
        "run_dir": str(run_dir),
        "stopped": stopped,
        "iteration": progress.iteration,
        "seconds": progress.seconds,
        "first": progress.initial_evaluation,
        "last": progress.latest_evaluation,
        "best": progress.best_reevaluation,
    }


def find_game_solver(workflow: Any) -> GameSolver | None:
    """Return the workflow that solves a game, also within populations; None if there is none."""
    while isinstance(workflow, (Population, EvolvingWorkflow)):
        workflow = workflow.inner if isinstance(workflow, Population) else workflow.population
    return workflow if isinstance(workflow, GameSolver) else None


def describe_continuation(workflow: Any, budget: Budget, iterations: int, go_on: str) -> str:
    """Return the command that resumes a training with twice the budget, or say that it is full."""
    most = workflow.max_iterations if isinstance(workflow, HasMaxIterations) else math.inf
    if iterations >= most:
        return f"the policy pool is full after {most} iterations; use a larger agent.workflow.capacity in a new run"
    return f"resume: {go_on} {' '.join(f'{name}={limit:g}' for name, limit in budget.double_limits(most).items())}"


def describe_checkpoint(checkpoints: Checkpoints, run_dir: Path, trust: Sequence[str]) -> str:
    """Describe the last checkpoint of a diverged run, with the options for a new run that starts from it.

    `trust` are the packages that the new run has to trust.
    """
    if checkpoints.latest_iteration is None:
        return "there is no checkpoint yet"
    words = f"init_from={run_dir}" + (f" trust=[{','.join(trust)}]" if trust else "")
    return f"last checkpoint: iteration {checkpoints.latest_iteration}; {words} starts from its best policy"
