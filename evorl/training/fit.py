"""The function `fit`, which compiles, runs and records the training of a workflow."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax

from evorl.errors import is_number, require, require_int
from evorl.parts import resolve_numbers
from evorl.training import processes
from evorl.training.callbacks import Callback
from evorl.training.configuration.options import INTEGER_RANGES
from evorl.training.devices import trim_heap
from evorl.training.driver import Driver
from evorl.training.dry_run import explain_out_of_memory, limit_budget
from evorl.training.eval_env import EvalEnvEvaluator
from evorl.training.profile import Profile
from evorl.training.program import Measure, Program
from evorl.training.progress import Budget, Progress
from evorl.training.records import display, fit_display
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import Row
from evorl.training.training_options import TrainingOptions
from evorl.types import Env, State, Transition, Workflow
from evorl.vector_env import hosts

EVALUATION_TIME_SHARE = 0.15  # default maximum share of evaluations, if the budget has minutes


@dataclass(frozen=True)
class TrainingResult:
    """Result of `fit`.

    With several seeds, the leaves of the states have a leading axis [num_seeds].

    Args:
        state: State after the last iteration.
        best: State at the best evaluation of each run, without replay buffers.
        progress: Progress counters, with the first and the last evaluation and the evaluation of the best
            policies.
        rows: Recorded rows; only the last one if `fit` was called with keep_rows=False.
        stopped: Whether training was stopped before its budget was used and its last evaluation was made.
    """

    state: State
    best: State
    progress: Progress
    rows: list[Row]
    stopped: bool


@explain_out_of_memory()
def fit(
    workflow: Workflow,
    seed: int = 0,
    budget: Budget = Budget(env_steps=1_000_000),  # noqa: B008  it is frozen
    callbacks: Sequence[Callback] = (),
    *,
    num_seeds: int = 1,
    evaluations: int = 20,
    evaluation_share: float | None = None,
    chunk: int = 1,
    vectorized: bool | None = None,
    checkpoints: Checkpoints | None = None,
    init_from: State = None,
    demonstrations: Transition | None = None,
    new_numbers: Mapping[str, float] | None = None,
    started: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    profile: Profile | None = None,
    debug_nans: bool = False,
    keep_rows: bool = True,
    devices: int | None = None,
    measure: Measure | None = None,
    eval_env: Env | None = None,
    progress: bool | None = None,
) -> TrainingResult:
    """Train a workflow with one or several seeds in one compiled program, and pass every row to the callbacks.

    A row records a chunk of iterations or an evaluation. Evaluations take place before the first iteration,
    then at equal intervals of the budget, and at the end. The last evaluation has rounds until it has 128
    episodes. Then the best policies are evaluated again in as many new episodes.

    Args:
        workflow: Workflow to train.
        seed: Seed of the first run.
        budget: Limits of the training. If it has minutes, an iteration starts only if it is expected to end
            in time, given the duration of the last ones.
        callbacks: Functions that receive each row.
        num_seeds: Number of runs, with seeds seed, seed + 1, ..., seed + num_seeds - 1.
        evaluations: Number of equal intervals at whose ends evaluations take place, besides the one before
            training; 1 for the start and the end alone.
        evaluation_share: Maximum share of the env steps that evaluations take, above 0 and at most 1. An
            evaluation is postponed as long as it would exceed the share. None for no limit. If the budget has
            minutes, it is the maximum share of the time, None means 0.15, and it also limits the last
            evaluation.
        chunk: Number of iterations per call of the compiled program and per row.
        vectorized: Whether the runs are vectorized (vmap) instead of executed sequentially. None for
            vectorized runs except on a CPU.
        checkpoints: Checkpoints that are saved on their own schedule. If their folder contains a checkpoint,
            training resumes from it.
        init_from: State of the same structure, whose weights new runs start from.
        demonstrations: Transitions, leaves [n, ...], that fill the replay buffer of a new training (see
            `evorl.training.demonstrations`).
        new_numbers: Hyperparameters that change when training resumes, by dotted name in the workflow.
        started: Start time of the process (`time.perf_counter()`). All time before the first iteration counts
            as compilation. None for now.
        stop: Returns whether to save and return; called after every chunk.
        profile: Profile that traces one iteration after the first chunk and then every few minutes.
        debug_nans: Whether to stop at the first diverged run and to find the operation that made the first
            NaN. This keeps a second copy of the state.
        keep_rows: Whether all rows are returned, instead of only the last one to save memory.
        devices: Number of devices over which seeds, members of a population or environments are distributed.
            None for as many as possible, over seeds and over those parts of a workflow that are distributed by
            default: the members of a population and the individuals of a policy search (see
            `set_host_devices`).
        measure: Function from the state of one run, without replay buffers, to further metrics of each
            evaluation, such as a `MazeSuite`. It is compiled once. Its metric `measured_steps` counts towards
            evaluation_share.
        eval_env: Environment in which to evaluate, with the same observation and action spaces. None for that
            of the training.
        progress: Whether to show the progress: a panel in a terminal, lines elsewhere. None for a display
            only in a terminal or a notebook, and only if there are no callbacks.

    Returns:
        The states, the progress and the rows.

    Raises:
        OptionError: An argument is invalid, or the state does not fit in memory.
        DivergedError: All runs have diverged, or one has with debug_nans.
        HostError: An environment on the host has failed.
    """
    counts = {"seed": seed, "num_seeds": num_seeds, "chunk": chunk, "evaluations": evaluations}
    counts |= {} if devices is None else {"devices": devices}
    for name, value in counts.items():
        require_int(name, value, *INTEGER_RANGES[name])
    require(isinstance(budget, Budget), "budget", budget, "must be a Budget, such as Budget(env_steps=1e6)")
    budget = limit_budget(budget, workflow)
    share = (EVALUATION_TIME_SHARE if budget.is_timed else 1.0) if evaluation_share is None else evaluation_share
    require(is_number(share) and 0 < share <= 1, "evaluation_share", share, "must be above 0 and at most 1")
    started = time.perf_counter() if started is None else started
    vectorized = jax.default_backend() != "cpu" if vectorized is None else vectorized
    with _show_progress(workflow, callbacks, progress) as callbacks:
        program = Program(workflow, range(seed, seed + num_seeds), chunk, vectorized, devices)
        evaluator = None if eval_env is None else EvalEnvEvaluator(workflow, eval_env)
        options = TrainingOptions(budget, share, started, debug_nans, keep_rows, measure, evaluator)
        numbers = resolve_numbers(workflow)
        driver = Driver(program, numbers, options, callbacks, checkpoints, init_from, new_numbers or {}, demonstrations)
        if checkpoints is not None and not (init_from is None and demonstrations is None):
            driver.save()  # a resumed run does not read them again
        _train(driver, evaluations, lambda: processes.any_process(bool(stop())), profile)
        trim_heap()
        state, log = hosts.clear_leases(driver.state), driver.training_log
        stopped = not (log.is_finished and log.has_final_evaluation)
        return TrainingResult(state, hosts.clear_leases(log.best), log.progress, log.rows, stopped)


@contextlib.contextmanager
def _show_progress(
    workflow: Workflow, callbacks: Sequence[Callback], progress: bool | None
) -> Iterator[Sequence[Callback]]:
    """Show the progress as `fit` describes it, and yield the callbacks of this process, with those of the display."""
    if not processes.is_first():
        yield ()
    elif not (progress or (progress is None and not callbacks)):
        yield callbacks
    else:
        unit = display.get_unit(workflow)
        shown = fit_display.open_display(type(workflow).__name__, unit) or (
            display.LinePrinter(unit=unit) if progress else None
        )
        with contextlib.nullcontext() if shown is None else contextlib.closing(shown):
            yield callbacks if shown is None else [*callbacks, shown]


def _train(driver: Driver, evaluations: int, is_stopped: Callable[[], bool], profile: Profile | None) -> None:
    """Train until the budget is used up or training is stopped, with all evaluations and checkpoints."""
    budget, checkpoints, log, progress = driver.budget, driver.checkpoints, driver.training_log, driver.progress
    used = budget.compute_used_share(progress.recent_usage[-1])  # less than before if the budget is larger now
    is_first = progress.initial_evaluation is None  # or it failed, and is repeated
    progress.evaluation_point = -1 if is_first else min(progress.evaluation_point, int(used * evaluations))
    while not is_stopped() and (used := driver.compute_used_share()) < 1:
        if driver.claim_evaluation(int(used * evaluations)):
            driver.evaluate()
        count = driver.limit_iterations(driver.program.chunk)
        if not count:
            break
        driver.dispatch(count, evaluating=False)
        driver.receive(all_but=1)
        if profile is not None and processes.agreed(profile.is_due):
            driver.trace_iteration(profile)
        if checkpoints is not None and checkpoints.is_due():
            driver.receive()
            if not log.is_finished:  # if finished, the last evaluation comes before the checkpoint
                driver.save()
    driver.receive()
    if log.is_finished and not log.has_final_evaluation:
        driver.run_final_evaluation(is_stopped)
    if checkpoints is not None:
        driver.save()
    driver.host_envs.close()
