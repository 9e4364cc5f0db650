"""Trainings: the one call that compiles, times and records a workflow."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from evorl.errors import is_number, require, require_int
from evorl.parts import resolve_numbers
from evorl.training.callbacks import Callback
from evorl.training.configuration.options import INTEGER_RANGES
from evorl.training.devices import trim_heap
from evorl.training.driver import Driver
from evorl.training.dry_run import explain_out_of_memory
from evorl.training.eval_env import EvalEnvEvaluator
from evorl.training.profile import Profile
from evorl.training.program import Measure, Program, choose_num_devices
from evorl.training.progress import Budget, Progress
from evorl.training.records import display
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import Row
from evorl.training.training_options import TrainingOptions
from evorl.types import Env, HasMaxIterations, State, Transition, Workflow
from evorl.vector_env import hosts

EVALUATION_TIME_SHARE = 0.15  # of a budget in minutes, that evaluations take at most


@dataclass(frozen=True)
class TrainingResult:
    """What fit returns; leaves of states lead with [num_seeds] where there are several."""

    state: State
    best: State  # without replays, at each run's best evaluation
    progress: Progress
    rows: list[Row]
    stopped: bool  # before its budget was used and its last evaluation made


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
    side_by_side: bool | None = None,
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
    """Trains runs seed, seed + 1, ..., seed + num_seeds - 1 in one program and hands every row to the callbacks.

    A row is a chunk of iterations, or an evaluation: before the first iteration, then evenly over the budget, and at
    the end, there in rounds until it has 128 episodes, and as many fresh ones of the best policies. An evaluation waits
    while it would make all of them more than evaluation_share of the env steps (by default none waits), or, where the
    budget has minutes, of the time (by default 0.15), to which the rounds at the end are held too. With minutes no
    iteration begins that would not end in time, as long as the last ones took.

    devices is over how many of them seeds, members or
    environments are spread, by default as many as divide the seeds, or what the workflow says to be spread; see
    set_host_devices. side_by_side says whether the runs are vmapped; by default everywhere but on a CPU (see Program).
    checkpoints saves on its schedule; where its folder holds a checkpoint, training goes on from there, with
    new_numbers, by their dotted names in the workflow, in the place of its own. init_from is a state like the one to
    come, whose weights the runs begin with. started is when the process began
    (time.perf_counter), by default now; all before the first iteration counts as compiling. stop is asked after every
    chunk whether to save and return. profile traces an iteration after the first chunk and then every few minutes.
    Raises DivergedError where no run is left whose numbers are finite, HostError where an environment on the host has
    failed; with debug_nans, which keeps a second copy of the state, at the first run lost, and names the operation.
    demonstrations (training.demonstrations), leaves [n, ...], fill the replay buffer of a new training.
    measure gives further metrics at each evaluation, from the state of one run without its replays, as MazeSuite does;
    it is compiled once, and the env steps that it tells of (metrics.MEASURED_STEPS) count for evaluation_share.
    eval_env is another environment to evaluate in, with the observations and actions of that of the training.
    Without keep_rows only the last row is returned: those of a long training take memory.
    progress shows how far the training is: a panel in a terminal, lines in a notebook, lines elsewhere where it is
    True; by default in a terminal and in a notebook, where no callbacks are given.
    """
    shown = None
    if progress or (progress is None and not callbacks):
        unit = display.get_unit(workflow)
        shown = display.open_display(type(workflow).__name__, unit) or (
            display.LinePrinter(unit=unit) if progress else None
        )
    with contextlib.ExitStack() as stack:
        if shown is not None:
            stack.callback(shown.close)
            callbacks = [*callbacks, shown]
        counts = {"seed": seed, "num_seeds": num_seeds, "chunk": chunk, "evaluations": evaluations, "devices": devices}
        for name, value in counts.items():
            if name != "devices" or value is not None:
                require_int(name, value, *INTEGER_RANGES[name])
        started = time.perf_counter() if started is None else started
        side_by_side = jax.default_backend() != "cpu" if side_by_side is None else side_by_side
        numbers = resolve_numbers(workflow)
        require(isinstance(budget, Budget), "budget", budget, "must be a Budget, such as Budget(env_steps=1e6)")
        budget = (
            budget.with_max_iterations(workflow.max_iterations) if isinstance(workflow, HasMaxIterations) else budget
        )
        devices = choose_num_devices(workflow, num_seeds) if devices is None else devices
        program = Program(workflow, range(seed, seed + num_seeds), chunk, side_by_side, devices)
        share = (EVALUATION_TIME_SHARE if budget.is_timed else 1.0) if evaluation_share is None else evaluation_share
        require(is_number(share) and 0 < share <= 1, "evaluation_share", share, "must be above 0 and at most 1")
        exam = None if eval_env is None else EvalEnvEvaluator(workflow, eval_env)
        terms = TrainingOptions(budget, share, started, debug_nans, keep_rows, measure, exam)
        driver = Driver(program, numbers, terms, callbacks, checkpoints, init_from, new_numbers or {}, demonstrations)
        journal, schedule = driver.training_log, driver.progress  # a resumed run may have been given a larger budget
        schedule.evaluation_point = min(
            schedule.evaluation_point, int(budget.compute_used_share(schedule.usage) * evaluations)
        )
        schedule.evaluation_point = (
            -1 if schedule.initial_evaluation is None else schedule.evaluation_point
        )  # one that failed is made again
        while not stop() and (done := driver.compute_used_share()) < 1:
            if driver.is_evaluation_due(int(done * evaluations)):
                driver.dispatch(1, evaluating=True)
            count = driver.limit_iterations(chunk)
            if not count:
                break
            driver.dispatch(count, evaluating=False)
            driver.receive(all_but=1)
            if profile is not None and profile.is_due:
                driver.trace_iteration(profile)
            if checkpoints is not None and checkpoints.is_due():
                driver.receive()
                if not journal.is_finished:  # or the last evaluation is still to come
                    driver.save()
        driver.receive()
        if journal.is_finished and not journal.has_final_evaluation:
            driver.run_final_evaluation(stop)
        if checkpoints is not None:
            driver.save()
        driver.host_envs.close()
        trim_heap()
        stopped = not (journal.is_finished and journal.has_final_evaluation)
        return TrainingResult(
            hosts.clear_leases(driver.state), hosts.clear_leases(journal.best), schedule, journal.rows, stopped
        )
