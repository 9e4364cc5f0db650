"""The driver: the one place where workflows are compiled, timed and recorded."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from evorl.errors import DivergedError, OptionError, require
from evorl.training.checkpoint import Checkpoints, check_fit, leaf_shapes, split
from evorl.training.nans import Sentinel, first_nan
from evorl.training.plan import require_memory
from evorl.training.profile import Profile
from evorl.training.program import RUNS_ONCE, Program, job
from evorl.types import Hyperparams, State, Workflow

KINDS = ("train", "evaluation")  # of rows
COUNTS = ("env_steps", "episodes", "gradient_steps")  # these add up; every other metric is a mean
OF_EPISODES = ("return", "return_best", "episode_length")  # means that weigh by episodes
SECONDS = ("compile_seconds", "evaluation_seconds", "host_seconds", "idle_seconds")
EVALUATION_SHARE = 0.25  # of the time, where the budget is in minutes

Row = dict[str, Any]
Callback = Callable[[Row], None]


@runtime_checkable
class Resumes(Protocol):
    """A callback that is told what a training with checkpoints goes on from, before its first row comes."""

    def resume(self, progress: "Progress") -> None: ...


@dataclass(frozen=True)
class Budget:
    """When training ends: at the first limit that every run has reached; minutes include compiling."""

    env_steps: float = math.inf
    episodes: float = math.inf
    iterations: float = math.inf
    minutes: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            require(limit > 0, name, limit, "must be above 0")
        if all(math.isinf(limit) for limit in vars(self).values()):
            raise OptionError("no budget: give env_steps, episodes, iterations or minutes")

    def used(self, mark: "Mark") -> float:
        """The part of the budget that is used, from 0 to 1."""
        return min(1.0, max(self._parts(mark)))

    def is_timed(self, mark: "Mark") -> bool:
        """Whether time is what uses the budget."""
        clock, *counted = self._parts(mark)
        return clock > max(counted)

    def _parts(self, mark: "Mark") -> list[float]:
        limits = self.minutes, self.env_steps, self.episodes, self.iterations
        return [part / limit for part, limit in zip(mark, limits, strict=True)]


class Mark(NamedTuple):
    """What a budget counts."""

    minutes: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    iterations: int = 0


@dataclass
class Progress:
    """How far a training has come; what a checkpoint keeps beside the state."""

    iteration: int = 0
    marks: list[Any] = field(default_factory=lambda: [Mark()] * 3)  # after each of the last chunks
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))  # handed to the callbacks
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    host_seconds: float = 0.0  # in callbacks and in saving, most of it while the device is at work
    idle_seconds: float = 0.0  # of the device, which waited for the host
    evaluated: int = -1  # the last point of the schedule that was evaluated
    best: Any = None  # the return of each run's best evaluation
    diverged: list[int | None] = field(default_factory=lambda: [None])  # the iteration by which each run had, or None
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one for each seed

    @property
    def mark(self) -> Mark:
        env_steps, episodes = (min(self.totals.get(count, [0])) for count in ("env_steps", "episodes"))
        return Mark(self.seconds / 60, env_steps, episodes, self.iteration)

    def mean(self, count: str) -> int:
        """Rounded down."""
        totals = self.totals.get(count, [0])
        return sum(totals) // len(totals)

    def add(self, count: str, values: list[int]) -> None:
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]


@dataclass(frozen=True)
class Training:
    """What fit returns; leaves of states lead with [num_seeds] where there are several."""

    state: State
    best: State  # without replays, at each run's best evaluation
    progress: Progress
    rows: list[Row]
    stopped: bool  # before its budget was used


def fit(
    workflow: Workflow,
    hyperparams: Hyperparams,
    seed: int = 0,
    budget: Budget = Budget(env_steps=1_000_000),
    callbacks: Sequence[Callback] = (),
    *,
    num_seeds: int = 1,
    evaluations: int = 20,
    chunk: int = 1,
    side_by_side: bool | None = None,
    checkpoints: Checkpoints | None = None,
    init_from: State = None,
    started: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    profile: Profile | None = None,
    debug_nans: bool = False,
) -> Training:
    """Trains runs seed, seed + 1, ..., seed + num_seeds - 1 in one program and hands every row to the callbacks.

    A row is a chunk of iterations, or an evaluation: after the first chunk, then evenly over the budget, and at the
    end. side_by_side says whether the runs are vmapped; by default everywhere but on a CPU (see Program).
    checkpoints saves on its schedule; where its folder holds a checkpoint, training goes on from there. init_from
    is a state like the one to come, whose weights the runs begin with. started is when the clock of the budget began
    (time.perf_counter), by default now. stop is asked after every chunk whether to save and return. profile
    traces an iteration, the first one after a chunk. Raises DivergedError where no run is left whose numbers are
    finite; with debug_nans, which keeps a second copy of the state, at the first run lost, and names the operation.
    """
    for name, value in {"num_seeds": num_seeds, "chunk": chunk, "evaluations": evaluations}.items():
        require(value >= 1, name, value, "must be at least 1")
    started = time.perf_counter() if started is None else started
    side_by_side = jax.default_backend() != "cpu" if side_by_side is None else side_by_side
    program = Program(workflow, range(seed, seed + num_seeds), chunk, side_by_side)
    driver = _Driver(program, hyperparams, budget, callbacks, checkpoints, init_from, started, debug_nans)
    schedule = driver.progress  # a resumed run may have been given a larger budget
    schedule.evaluated = min(schedule.evaluated, int(budget.used(schedule.mark) * evaluations))
    while not stop() and (done := driver.used()) < 1:
        if driver.evaluation_is_due(int(done * evaluations)):
            driver.dispatch(1, evaluating=True)
        driver.dispatch(int(min(chunk, budget.iterations - driver.dispatched)), evaluating=False)
        driver.receive(all_but=1)
        if profile is not None and not profile.shares:
            driver.trace(profile)
        if checkpoints is not None and checkpoints.due():
            driver.receive()
            if not driver.finished:  # or the last evaluation is still to come
                driver.save()
    driver.receive()
    if driver.finished and driver.dispatched > driver.first:
        driver.dispatch(1, evaluating=True)
        driver.receive()
    if checkpoints is not None:
        driver.save()
    return Training(driver.state, driver.best, driver.progress, driver.rows, not driver.finished)


class _Driver:
    """The state on the device, what is in flight there, and what has come back of it."""

    def __init__(
        self,
        program: Program,
        hyperparams: Hyperparams,
        budget: Budget,
        callbacks: Sequence[Callback],
        checkpoints: Checkpoints | None,
        init_from: State,
        started: float,
        debug_nans: bool,
    ) -> None:
        self.budget, self.callbacks, self.checkpoints = budget, callbacks, checkpoints
        self.program, self.num_seeds, self.keys, self.debug_nans = program, len(program.seeds), program.keys, debug_nans
        self.snapshot = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        compiling = time.perf_counter()
        init = jax.jit(program.init).trace(self.keys, hyperparams)
        if checkpoints is not None and checkpoints.latest is not None:
            self.state, self.best, saved = checkpoints.restore(init.out_info)
            self.progress = Progress(**saved)
        else:
            require_memory(init.out_info)
            if checkpoints is not None:
                checkpoints.begin(init.out_info)
            self.state, self.progress = init.lower().compile(RUNS_ONCE)(self.keys, hyperparams), Progress()
            self.progress.diverged *= self.num_seeds
            if init_from is not None:
                check_fit("what init_from gives", leaf_shapes(init_from), split(init.out_info)[0])
                self.state = jax.jit(program.inherit, donate_argnums=0)(self.state, init_from)
            self.best = self.snapshot(split(self.state)[0])
        if checkpoints is not None:
            for callback in callbacks:
                if isinstance(callback, Resumes):
                    callback.resume(self.progress)
        self.sentinel = Sentinel(program, self.state, [x is not None for x in self.progress.diverged])
        lowered = jax.jit(program.run, donate_argnums=0).lower(self.state, self.keys, *job(0, 0, False))
        self.run = lowered.compile()
        self.arrived = time.perf_counter()
        self.started = started - self.progress.seconds
        self.progress.compile_seconds += self.arrived - compiling
        self.progress.idle_seconds += compiling - started
        self.idle_since: float | None = self.arrived
        self.first = self.dispatched = self.progress.iteration
        self.in_flight: deque[_InFlight] = deque()
        self.rows: list[Row] = []

    @property
    def finished(self) -> bool:
        return self.budget.used(self.progress.mark) >= 1

    def used(self) -> float:
        """The part of the budget that is used without the last chunk; with it where that may be the last of all.

        So it depends on the chunks alone, and not on which of them have come back, or on where a run was resumed.
        """
        before, done = (self.budget.used(Mark(*mark)) for mark in self.progress.marks[-2 - (not self.in_flight) :][:2])
        if 2 * done - before < 1 and self.dispatched < self.budget.iterations:
            return done
        self.receive()
        return self.budget.used(self.progress.mark)

    def evaluation_is_due(self, point: int) -> bool:
        """Whether this point of the schedule was not evaluated yet; it waits where evaluations take too long."""
        done = self.progress
        timed = self.budget.is_timed(done.mark) and done.evaluation_seconds > EVALUATION_SHARE * done.seconds
        if not self.dispatched or point <= done.evaluated or timed:
            return False
        done.evaluated = point
        return True

    def dispatch(self, count: int, evaluating: bool) -> None:
        """Hands the device count steps, or an evaluation, without waiting for what it has in hand."""
        if self.idle_since is not None:
            self.arrived = time.perf_counter()
            self.progress.idle_seconds += self.arrived - self.idle_since
            self.idle_since = None
        before = self.snapshot(self.state) if self.debug_nans and not evaluating else None
        todo = job(self.dispatched, count, evaluating)
        self.state, metrics, evaluation = self.run(self.state, self.keys, *todo)
        if evaluating:
            self.in_flight.append(_InFlight(0, evaluation, evaluated=self.snapshot(split(self.state)[0])))
        else:
            self.in_flight.append(_InFlight(count, metrics, found=self.sentinel.look(self.state), before=before))
            self.dispatched += count

    def receive(self, all_but: int = 0) -> None:
        """Waits for what is in flight, but for the last `all_but`, and hands it to the callbacks row by row."""
        while len(self.in_flight) > all_but:
            job = self.in_flight.popleft()
            metrics, found = jax.device_get((job.metrics, job.found))
            now = time.perf_counter()
            duration, self.arrived, self.progress.seconds = now - self.arrived, now, now - self.started
            if not self.in_flight:
                self.idle_since = now
            problem = None
            if job.evaluated is not None:
                self.progress.evaluation_seconds += duration
                self._keep_best(job.evaluated, metrics["return"])
            else:
                metrics = self._count(job.count, metrics)
                problem = self._mark(job, found)
            row = _row(self.progress, metrics, "train" if job.evaluated is None else "evaluation", duration)
            row["progress"] = self.budget.used(self.progress.mark)
            self.rows.append(row)
            self.progress.rows[row["kind"]] += 1
            for callback in self.callbacks:
                callback(row)
            self.progress.host_seconds += time.perf_counter() - now
            if problem is not None:
                raise DivergedError(problem)

    def _mark(self, job: "_InFlight", found: np.ndarray) -> str | None:
        """Marks the runs that have diverged in a chunk; says so where none is left, or where it is to be found out."""
        iteration, lost = self.progress.iteration, self.progress.diverged
        leaves = self.sentinel.diverged(found)
        new = [seed for seed, leaf in enumerate(leaves) if leaf is not None and lost[seed] is None]
        for seed in new:
            lost[seed] = iteration
        if not new or (None in lost and not self.debug_nans):
            return None
        problem = f"diverged: {leaves[new[0]]} is not finite after iteration {iteration}"
        if self.num_seeds > 1:
            problem = f"seed {self.program.seeds[new[0]]} {problem}"
        if job.before is not None:
            problem += f"; {first_nan(self.program, job.before, new[0], iteration - job.count, job.count)}"
        return problem

    def trace(self, profile: Profile) -> None:
        """One iteration, traced."""
        self.receive()
        if self.dispatched < self.budget.iterations:
            with profile.tracing(self.run):
                self.dispatch(1, evaluating=False)
                self.receive()

    def _keep_best(self, evaluated: State, returns: np.ndarray) -> None:
        """Puts the evaluated states in the place of those that they beat; returns leads as all leaves do."""
        before = np.full(returns.shape, -np.inf) if self.progress.best is None else np.asarray(self.progress.best)
        returns = np.where(np.isnan(returns), -np.inf, returns)
        better = (returns > before) | np.isneginf(before)
        if better.any():
            self.best = jax.tree.map(
                lambda new, old: np.where(better.reshape(better.shape + (1,) * (old.ndim - better.ndim)), new, old),
                jax.device_get(evaluated),
                self.best,
            )
        self.progress.best = np.where(better, returns, before).tolist()

    def _count(self, count: int, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Adds a chunk to the progress; returns its metrics as those of one step."""
        by_step = {name: np.moveaxis(np.asarray(x), int(self.num_seeds > 1), 0)[:count] for name, x in metrics.items()}
        metrics = reduce(by_step)
        self.progress.iteration += count
        for name in COUNTS:
            if name in metrics:
                self.progress.add(name, _per_seed(metrics[name], self.num_seeds))
        self.progress.marks = [*self.progress.marks[1:], self.progress.mark]
        return metrics

    def save(self) -> None:
        """Saves the state as it is when nothing is in flight."""
        assert self.checkpoints is not None
        now = time.perf_counter()
        self.checkpoints.save(self.progress.iteration, self.state, self.best, asdict(self.progress))
        self.progress.host_seconds += time.perf_counter() - now


@dataclass(frozen=True)
class _InFlight:
    """What the device was handed: count iterations, or an evaluation of the policies `evaluated`."""

    count: int
    metrics: Any
    evaluated: State = None
    found: Any = None  # by the sentinel
    before: State = None  # the state that a chunk began with


def reduce(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Metrics [chunk, ...] of several steps as one: counts add up, returns weigh by episodes, the others average."""
    weight = metrics.get("episodes")
    reduced = {}
    for name, values in metrics.items():
        if name in COUNTS:
            value = values.astype(np.int64).sum(0)
        elif name in OF_EPISODES and weight is not None:
            value = (values * weight).sum(0) / np.maximum(weight.sum(0), 1)
        else:
            value = values.mean(0)
        reduced[name] = np.asarray(value)
    return reduced


def _per_seed(values: np.ndarray, num_seeds: int) -> list[int]:
    """Counts [seeds, members...] or [members...] of one seed, summed over members."""
    return [int(x) for x in np.asarray(values).reshape(num_seeds, -1).sum(1)]


def _row(progress: Progress, metrics: dict[str, np.ndarray], kind: str, duration: float) -> Row:
    """A record that JSON can hold: totals and metrics of the runs together, and apart where there are several.

    Means are over the runs that have not diverged, those of episodes over the runs in which one has ended.
    """
    row: Row = {"kind": kind, "iteration": progress.iteration, "seconds": progress.seconds, "duration": duration}
    row |= {name: getattr(progress, name) for name in SECONDS}
    totals, num_seeds = dict(progress.totals), len(progress.diverged)
    apart: dict[str, list[float]] = {}
    for name, values in metrics.items():
        if name not in COUNTS:
            apart[name] = np.asarray(values, np.float64).reshape(num_seeds, -1).mean(1).tolist()
    row |= {name: progress.mean(name) for name in totals}
    episodes = _per_seed(metrics["episodes"], num_seeds) if "episodes" in metrics else [1] * num_seeds
    whole = [x is None for x in progress.diverged]
    for name, values in apart.items():
        ended = episodes if name in OF_EPISODES else [1] * num_seeds
        counted = [x for x, n, sound in zip(values, ended, whole, strict=True) if n and (sound or not any(whole))]
        row[name] = math.fsum(counted) / max(len(counted), 1)
    row["diverged"] = num_seeds - sum(whole)
    if num_seeds > 1:
        row["seeds"] = totals | apart | {"diverged": [int(not sound) for sound in whole]}
    return row
