"""What drives a training: the state on the device, what is in flight there, and what has come back of it."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.errors import DivergedError
from evorl.metrics import COUNTS, over_rounds, reduce
from evorl.replay import split
from evorl.training.callbacks import Callback, Follows, Resumes
from evorl.training.devices import compiler_options
from evorl.training.nans import Sentinel, first_nan
from evorl.training.plan import indexing, reading, require_memory
from evorl.training.profile import Profile
from evorl.training.program import RUNS_ONCE, Program, job
from evorl.training.progress import Budget, Mark, Progress
from evorl.training.records.checkpoint import Checkpoints, check_fit, leaf_shapes
from evorl.training.records.rows import Row, interval, per_seed, row_of
from evorl.types import Hyperparams, State

LAST_EPISODES = 128  # of the evaluation at the end, in as many rounds as that takes


@dataclass(frozen=True)
class InFlight:
    """What the device was handed: count iterations, or an evaluation of the policies `evaluated`."""

    count: int
    metrics: Any
    evaluated: State = None
    found: Any = None  # by the sentinel
    before: State = None  # the state that a chunk began with


class Driver:
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
        evaluation_share: float,
        debug_nans: bool,
        keep_rows: bool,
    ) -> None:
        self.share, self.full = evaluation_share, False
        self.evaluation_took = 0.0  # seconds, the last one
        self.paces: deque[float] = deque(maxlen=3)  # seconds of an iteration of the last chunks
        self.budget, self.callbacks, self.checkpoints = budget, callbacks, checkpoints
        self.program, self.num_seeds, self.keys, self.debug_nans = program, len(program.seeds), program.keys, debug_nans
        self.snapshot = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self._tell("tracing")
        with indexing(), reading("hyperparams"), jax.set_mesh(program.mesh):
            once = jax.jit(program.init)  # so that its shapes and its code come from one trace
            shapes = jax.eval_shape(once, self.keys, hyperparams)
            places = program.placed(shapes)

            def init_placed(keys: jax.Array, hyperparams: Hyperparams) -> State:
                return once(keys, hyperparams)

            init = jax.jit(init_placed, out_shardings=places).trace(self.keys, hyperparams)
            shapes = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
            run = jax.jit(program.run, donate_argnums=0, out_shardings=(places, None, None))
            lowered = run.lower(shapes, self.keys, *job(0, 0, False))
        if checkpoints is not None and checkpoints.latest is not None:
            self.state, self.best, saved = checkpoints.restore(init.out_info)
            self.state = jax.device_put(self.state, places)
            self.progress = Progress.of(saved, self.num_seeds)
        else:
            require_memory(init.out_info)
            if checkpoints is not None:
                checkpoints.begin(init.out_info)
            self.state, self.progress = init.lower().compile(RUNS_ONCE)(self.keys, hyperparams), Progress()
            self.progress.diverged *= self.num_seeds
            if init_from is not None:
                check_fit("what init_from gives", leaf_shapes(init_from), split(init.out_info)[0])
                inherit = jax.jit(program.inherit, donate_argnums=0, out_shardings=places)
                self.state = inherit(self.state, init_from)
            self.best = self.snapshot(split(self.state)[0])
        if checkpoints is not None:
            for callback in callbacks:
                if isinstance(callback, Resumes):
                    callback.resume(self.progress)
        self.sentinel = Sentinel(program, self.state, [x is not None for x in self.progress.diverged])
        self._tell("compiling")
        self.run = lowered.compile(compiler_options())
        self._tell("training")
        self.arrived = time.perf_counter()
        self.started = started - self.progress.seconds
        self.progress.compile_seconds += self.arrived - started
        self.idle_since: float | None = self.arrived
        self.first = self.dispatched = self.progress.iteration
        self.in_flight: deque[InFlight] = deque()
        self.rows: list[Row] = []
        self.keep_rows = keep_rows

    def _tell(self, stage: str) -> None:
        for callback in self.callbacks:
            if isinstance(callback, Follows):
                callback.stage(stage)

    @property
    def finished(self) -> bool:
        """Whether the budget is used."""
        return self.full or self.budget.used(self.progress.mark) >= 1

    def used(self) -> float:
        """The part of the budget that is used without the last chunk; with it where that may be the last of all.

        So it depends on the chunks alone, and not on which of them have come back, or on where a run was resumed.
        """
        before, done = (self.budget.used(mark) for mark in self._marks)
        if 2 * done - before < 1 and self.dispatched < self.budget.iterations:
            return done
        self.receive()
        return self.budget.used(self.progress.mark)

    @property
    def _marks(self) -> list[Mark]:
        """After the last chunk but two and but one."""
        return [Mark(*mark) for mark in self.progress.marks[-2 - (not self.in_flight) :][:2]]

    def fitting(self, count: int) -> int:
        """How many of count iterations may begin: where minutes may end the training, those that end in time."""
        count = int(min(count, self.budget.iterations - self.dispatched))
        if not self.budget.is_timed or not count:
            return count
        self.receive(all_but=0 if self._left() < 3 * count * self.progress.pace else 1)
        if not self.progress.pace:
            return 1
        pending = sum(sent.count * self.progress.pace or self.evaluation_took for sent in self.in_flight)
        count = int(min(count, max((self._left() - pending) / self.progress.pace, 0)))
        self.full = not count
        return count

    def _left(self) -> float:
        """Seconds of the budget that are left."""
        return 60 * self.budget.minutes - (time.perf_counter() - self.started - self.progress.compile_seconds)

    def evaluation_is_due(self, point: int) -> bool:
        """Whether this point of the schedule was not evaluated yet; it waits while evaluations take too much."""
        done = self.progress
        if self.budget.is_timed:
            cost, spent, total = self.evaluation_took, done.evaluation_seconds, done.seconds - done.compile_seconds
        else:
            cost, spent = done.last_evaluation_steps, done.evaluation_steps
            total = self._marks[1].env_steps * self.num_seeds + spent
        if not self.dispatched or point <= done.evaluated or spent + cost > self.share * (total + cost):
            return False
        done.evaluated = point
        return True

    def dispatch(self, count: int, evaluating: bool, part: int = 0) -> None:
        """Hands the device count steps, or a round of an evaluation, without waiting for what it has in hand."""
        if self.idle_since is not None:
            self.arrived = time.perf_counter()
            self.progress.idle_seconds += self.arrived - self.idle_since
            self.idle_since = None
        before = self.snapshot(self.state) if self.debug_nans and not evaluating else None
        keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(self.keys, part) if part else self.keys
        todo = job(self.dispatched, count, evaluating)
        self.state, metrics, evaluation = self.run(self.state, keys, *todo)
        if evaluating:
            self.in_flight.append(InFlight(0, evaluation, evaluated=self.snapshot(split(self.state)[0])))
        else:
            self.in_flight.append(InFlight(count, metrics, found=self.sentinel.look(self.state), before=before))
            self.dispatched += count

    def receive(self, all_but: int = 0) -> None:
        """Waits for what is in flight, but for the last `all_but`, and hands it to the callbacks row by row."""
        while len(self.in_flight) > all_but:
            sent, metrics, found, duration = self._wait()
            if sent.evaluated is not None:
                self._evaluated(sent.evaluated, metrics, duration)
                continue
            self.paces.append(duration / sent.count)
            self.progress.pace = max(self.paces)
            metrics = self._count(sent.count, metrics)
            problem = self._mark(sent, found)
            self._record(row_of(self.progress, metrics, "train", duration))
            if problem is not None:
                raise DivergedError(problem)

    def examine(self, stop: Callable[[], bool]) -> None:
        """The last evaluation: rounds of it until they have 128 episodes, or have taken their share of the minutes."""
        rounds: list[dict[str, np.ndarray]] = []
        seconds, longest, evaluated = 0.0, 60 * self.share * self.budget.minutes, None
        while not rounds or not (stop() or seconds * (1 + 1 / len(rounds)) > longest):
            self.dispatch(1, evaluating=True, part=len(rounds))
            sent, metrics, _, duration = self._wait()
            rounds, seconds, evaluated = [*rounds, metrics], seconds + duration, sent.evaluated
            if sum(metrics.get("episodes", np.array(LAST_EPISODES)).min() for metrics in rounds) >= LAST_EPISODES:
                break
        self._evaluated(evaluated, over_rounds(rounds), seconds)

    def _wait(self) -> "tuple[InFlight, dict[str, np.ndarray], Any, float]":
        """What was sent first, its metrics, what the sentinel found, and the seconds that it took."""
        sent = self.in_flight.popleft()
        metrics, found = jax.device_get((sent.metrics, sent.found))
        now = time.perf_counter()
        duration, self.arrived, self.progress.seconds = now - self.arrived, now, now - self.started
        if not self.in_flight:
            self.idle_since = now
        return sent, metrics, found, duration

    def _evaluated(self, state: State, metrics: dict[str, np.ndarray], duration: float) -> None:
        """Records an evaluation of a state, which is kept where it is the best so far."""
        done = self.progress
        steps = int(np.sum(metrics["episodes"] * metrics["episode_length"])) if "episodes" in metrics else 0
        self.evaluation_took, done.last_evaluation_steps = duration, steps
        done.evaluation_seconds += duration
        done.evaluation_steps += steps
        self._keep_best(state, metrics["return"])
        row = row_of(done, metrics, "evaluation", duration)
        low, high = interval(row)
        done.last = {"env_steps": done.mean("env_steps"), "return": row["return"], "low": low, "high": high}
        done.first = done.first or done.last
        self._record(row)

    def _record(self, row: Row) -> None:
        now = time.perf_counter()
        row["progress"] = 1.0 if self.full else self.budget.used(self.progress.mark)
        if not self.keep_rows:
            self.rows.clear()
        self.rows.append(row)
        self.progress.rows[row["kind"]] += 1
        for callback in self.callbacks:
            callback(row)
        self.progress.host_seconds += time.perf_counter() - now

    def _mark(self, sent: "InFlight", found: np.ndarray) -> str | None:
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
        if sent.before is not None:
            problem += f"; {first_nan(self.program, sent.before, new[0], iteration - sent.count, sent.count)}"
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
        metrics = {name: np.asarray(x) for name, x in reduce(by_step).items()}
        self.progress.iteration += count
        for name in COUNTS:
            if name in metrics:
                self.progress.add(name, per_seed(metrics[name], self.num_seeds))
        self.progress.marks = [*self.progress.marks[1:], self.progress.mark]
        return metrics

    def save(self) -> None:
        """Saves the state as it is when nothing is in flight."""
        assert self.checkpoints is not None
        now = time.perf_counter()
        self.checkpoints.save(self.progress.iteration, self.state, self.best, asdict(self.progress))
        self.progress.host_seconds += time.perf_counter() - now
