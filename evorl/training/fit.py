"""Trainings: the one call that compiles, times and records a workflow."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from evorl import hyperparameters
from evorl.errors import is_number, require, require_whole
from evorl.training.callbacks import Callback
from evorl.training.configuration.options import WHOLE
from evorl.training.devices import trim_heap
from evorl.training.driver import Driver
from evorl.training.elsewhere import Elsewhere
from evorl.training.plan import allocating
from evorl.training.profile import Profile
from evorl.training.program import Measure, Program, most_devices
from evorl.training.progress import Budget, Progress
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import Row
from evorl.training.terms import Terms
from evorl.types import Env, Fills, Hyperparams, State, Workflow
from evorl.vector_env import hosts

TIMED_SHARE = 0.15  # of a budget in minutes, that evaluations take at most


@dataclass(frozen=True)
class Training:
    """What fit returns; leaves of states lead with [num_seeds] where there are several."""

    state: State
    best: State  # without replays, at each run's best evaluation
    progress: Progress
    rows: list[Row]
    stopped: bool  # before its budget was used and its last evaluation made


@allocating()
def fit(
    workflow: Workflow,
    hyperparams: Hyperparams = None,
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
    started: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    profile: Profile | None = None,
    debug_nans: bool = False,
    keep_rows: bool = True,
    devices: int | None = None,
    measure: Measure | None = None,
    eval_env: Env | None = None,
) -> Training:
    """Trains runs seed, seed + 1, ..., seed + num_seeds - 1 in one program and hands every row to the callbacks.

    A row is a chunk of iterations, or an evaluation: before the first iteration, then evenly over the budget, and at
    the end, there in rounds until it has 128 episodes, and as many fresh ones of the best policies. An evaluation waits
    while it would make all of them more than evaluation_share of the env steps (by default none waits), or, where the
    budget has minutes, of the time (by default 0.15), to which the rounds at the end are held too. With minutes no
    iteration begins that would not end in time, as long as the last ones took.

    hyperparams are by default those of the workflow's parts. devices is over how many of them seeds, members or slots
    are spread, by default as many as divide the seeds, or what the workflow says to be spread; see host_devices.
    side_by_side says whether the runs are vmapped; by default everywhere but on a CPU (see Program). checkpoints saves
    on its schedule; where its folder holds a checkpoint, training goes on from there. init_from is a state like the one
    to come, whose weights the runs begin with. started is when the process began (time.perf_counter), by default now;
    all before the first iteration counts as compiling. stop is asked after every chunk whether to save and return.
    profile traces an iteration after the first chunk and then every few minutes. Raises DivergedError where no run is
    left whose numbers are finite, HostError where an environment on the host has failed; with debug_nans, which keeps a
    second copy of the state, at the first run lost, and names the operation.
    measure gives further metrics at each evaluation, from the state of one run without its replays, as MazeSuite does;
    it is compiled once, and the env steps that it tells of (metrics.MEASURED_STEPS) count for evaluation_share.
    eval_env is another environment to evaluate in, with the observations and actions of that of the training.
    Without keep_rows only the last row is returned: those of a long training take memory.
    """
    counts = {"seed": seed, "num_seeds": num_seeds, "chunk": chunk, "evaluations": evaluations, "devices": devices}
    for name, value in counts.items():
        if name != "devices" or value is not None:
            require_whole(name, value, *WHOLE[name])
    started = time.perf_counter() if started is None else started
    side_by_side = jax.default_backend() != "cpu" if side_by_side is None else side_by_side
    hyperparams = hyperparameters.of(workflow) if hyperparams is None else hyperparams
    hyperparameters.require_pytree(hyperparams)
    hyperparameters.check_ranges(hyperparams)
    require(isinstance(budget, Budget), "budget", budget, "must be a Budget, such as Budget(env_steps=1e6)")
    budget = budget.within(workflow.most_iterations) if isinstance(workflow, Fills) else budget
    devices = most_devices(workflow, num_seeds) if devices is None else devices
    program = Program(workflow, range(seed, seed + num_seeds), chunk, side_by_side, devices)
    share = (TIMED_SHARE if budget.is_timed else 1.0) if evaluation_share is None else evaluation_share
    require(is_number(share) and 0 < share <= 1, "evaluation_share", share, "must be above 0 and at most 1")
    exam = None if eval_env is None else Elsewhere(workflow, eval_env)
    terms = Terms(budget, share, started, debug_nans, keep_rows, measure, exam)
    driver = Driver(program, hyperparams, terms, callbacks, checkpoints, init_from)
    journal, schedule = driver.journal, driver.progress  # a resumed run may have been given a larger budget
    schedule.evaluated = min(schedule.evaluated, int(budget.used(schedule.mark) * evaluations))
    schedule.evaluated = -1 if schedule.first is None else schedule.evaluated  # one that failed is made again
    while not stop() and (done := driver.used()) < 1:
        if driver.evaluation_is_due(int(done * evaluations)):
            driver.dispatch(1, evaluating=True)
        count = driver.fitting(chunk)
        if not count:
            break
        driver.dispatch(count, evaluating=False)
        driver.receive(all_but=1)
        if profile is not None and profile.due:
            driver.trace(profile)
        if checkpoints is not None and checkpoints.due():
            driver.receive()
            if not journal.finished:  # or the last evaluation is still to come
                driver.save()
    driver.receive()
    if journal.finished and not journal.examined:
        driver.examine(stop)
    if checkpoints is not None:
        driver.save()
    driver.hosts.close()
    trim_heap()
    stopped = not (journal.finished and journal.examined)
    return Training(hosts.without(driver.state), hosts.without(journal.best), schedule, journal.rows, stopped)
