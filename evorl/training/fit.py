"""The driver: the one place where workflows are compiled, timed and recorded."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.errors import OptionError, require
from evorl.types import Hyperparams, Metrics, State, Workflow
from evorl.workflows import base

COUNTS = ("env_steps", "episodes", "gradient_steps")  # these add up; every other metric is a mean
OF_EPISODES = ("return", "return_best", "episode_length")  # means that weigh by episodes
EVALUATION_SHARE = 0.25  # of the time, where the budget is in minutes

Row = dict[str, Any]
Callback = Callable[[Row], None]


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

    def progress(self, done: "Progress") -> tuple[float, bool]:
        """The part of the budget that is used, from 0 to 1, and whether time is what uses it."""
        clock = done.seconds / 60 / self.minutes
        counted = max(
            done.iteration / self.iterations,
            done.least("env_steps") / self.env_steps,
            done.least("episodes") / self.episodes,
        )
        return min(1.0, max(clock, counted)), clock > counted


@dataclass
class Progress:
    """How far a training has come; what a checkpoint keeps beside the state."""

    iteration: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    evaluated: int = -1  # the last point of the schedule that was evaluated
    totals: dict[str, list[int]] = field(default_factory=dict)  # counts so far, one for each seed

    def least(self, count: str) -> int:
        return min(self.totals.get(count, [0]))

    def add(self, count: str, values: list[int]) -> None:
        self.totals[count] = [a + b for a, b in zip(self.totals.get(count, [0] * len(values)), values, strict=True)]


@dataclass(frozen=True)
class Training:
    """What fit returns: the final state (leaves lead with [num_seeds] where there are several), and all rows."""

    state: State
    progress: Progress
    rows: list[Row]


@dataclass(frozen=True)
class Program:
    """A workflow compiled: the initial states of its runs, and a chunk of steps or one evaluation of each.

    The runs go side by side (vmap), or one after the other in a loop: on a CPU, whose cores one run keeps busy, nothing
    is gained side by side, and each run would wait for the longest episode and the most updates of all.
    """

    workflow: Workflow
    seeds: Sequence[int]
    chunk: int
    side_by_side: bool

    @property
    def keys(self) -> jax.Array:
        """[seeds, 3]: of each run the keys of its initial state, its steps and its evaluations."""
        return jnp.stack([jax.random.split(jax.random.key(seed), 3) for seed in self.seeds])

    def init(self, keys: jax.Array, hyperparams: Hyperparams) -> State:
        """The initial state; leaves lead with [seeds] where there are several."""
        if len(self.seeds) == 1:
            return self.workflow.init(keys[0, 0], hyperparams)
        return jax.vmap(lambda key: self.workflow.init(key, hyperparams))(keys[:, 0])

    def run(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """count <= chunk steps of every run, of which step i draws from fold_in(key, first + i); or one evaluation.

        Returns the state, the steps' metrics [(seeds,) chunk, ...], of which count are filled, and the evaluation's.
        """

        def one(state: State, keys: jax.Array) -> tuple[State, Metrics, Metrics]:
            return self._run_one(state, jnp.where(evaluating, keys[2], keys[1]), first, count, evaluating)

        if len(self.seeds) == 1:
            return one(state, keys[0])
        if self.side_by_side:
            return jax.vmap(one)(state, keys)
        one = jax.jit(one)  # so that its shapes and its code come from one trace
        outputs = jax.eval_shape(one, tree.index(state, 0), keys[0])[1:]
        outputs = jax.tree.map(lambda x: jnp.zeros((len(self.seeds), *x.shape), x.dtype), outputs)

        def run(seed: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, outputs = carry
            after, *new = one(tree.index(state, seed), keys[seed])
            return tree.put(state, seed, after), tree.put(outputs, seed, tuple(new))

        state, outputs = jax.lax.fori_loop(0, len(self.seeds), run, (state, outputs))
        return state, *outputs

    def _run_one(
        self, state: State, key: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        @jax.jit
        def advance(state: State, i: jax.Array) -> tuple[State, Metrics, Metrics]:
            return base.advance(self.workflow, state, jax.random.fold_in(key, first + i), evaluating)

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, state, rows, _ = loop
            state, metrics, evaluation = advance(state, i)
            return i + 1, state, tree.put(rows, i, metrics), evaluation

        _, metrics, evaluation = jax.eval_shape(advance, state, jnp.int32(0))
        rows = jax.tree.map(lambda x: jnp.zeros((self.chunk, *x.shape), x.dtype), metrics)
        loop = jnp.int32(0), state, rows, tree.zeros(evaluation)
        return jax.lax.while_loop(lambda loop: loop[0] < count, step, loop)[1:]


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
    checkpoints: Any = None,
    started: float | None = None,
) -> Training:
    """Trains runs seed, seed + 1, ..., seed + num_seeds - 1 in one program and hands every row to the callbacks.

    A row is a chunk of iterations, or an evaluation: after the first chunk, then evenly over the budget, and at the
    end. side_by_side says whether the runs are vmapped; by default everywhere but on a CPU (see Program).
    checkpoints (training.checkpoint.Checkpoints) saves on its schedule; where its folder holds a checkpoint,
    training goes on from there. started is when the clock of the budget began (time.perf_counter), by default now.
    """
    require(num_seeds >= 1, "num_seeds", num_seeds, "must be at least 1")
    require(chunk >= 1, "chunk", chunk, "must be at least 1")
    require(evaluations >= 1, "evaluations", evaluations, "must be at least 1")
    started = time.perf_counter() if started is None else started
    side_by_side = jax.default_backend() != "cpu" if side_by_side is None else side_by_side
    program = Program(workflow, range(seed, seed + num_seeds), chunk, side_by_side)
    keys, progress = program.keys, Progress()
    compiling = time.perf_counter()
    shapes = jax.eval_shape(program.init, keys, hyperparams)
    state = None
    if checkpoints is not None and checkpoints.latest is not None:
        state, saved = checkpoints.restore(shapes)
        progress = Progress(**saved)
        started -= progress.seconds
    else:
        state = jax.jit(program.init)(keys, hyperparams)
    run = jax.jit(program.run, donate_argnums=0).lower(state, keys, *_job(0, 0, False)).compile()
    progress.compile_seconds += time.perf_counter() - compiling

    rows: list[Row] = []
    in_flight: deque[tuple[int, bool, Any]] = deque()
    dispatched, last_arrival = progress.iteration, time.perf_counter()

    def dispatch(count: int, evaluating: bool) -> None:
        nonlocal state, dispatched
        state, metrics, evaluation = run(state, keys, *_job(dispatched, count, evaluating))
        in_flight.append((count, evaluating, evaluation if evaluating else metrics))
        dispatched += 0 if evaluating else count

    def receive() -> None:
        nonlocal last_arrival
        count, evaluating, metrics = in_flight.popleft()
        metrics = jax.device_get(metrics)
        now = time.perf_counter()
        duration, last_arrival, progress.seconds = now - last_arrival, now, now - started
        if evaluating:
            progress.evaluation_seconds += duration
        else:
            progress.iteration += count
            steps_first = {name: np.moveaxis(np.asarray(x), int(num_seeds > 1), 0) for name, x in metrics.items()}
            metrics = reduce({name: x[:count] for name, x in steps_first.items()})
            for name in COUNTS:
                if name in metrics:
                    progress.add(name, _per_seed(metrics[name], num_seeds))
        row = _row(progress, metrics, num_seeds, "evaluation" if evaluating else "train", duration)
        row["progress"] = budget.progress(progress)[0]
        rows.append(row)
        for callback in callbacks:
            callback(row)

    def drain() -> None:
        while in_flight:
            receive()

    last_step = 0.0  # what a chunk adds to the progress
    while True:
        done, timed = budget.progress(progress)
        if in_flight and done + last_step >= 1:  # the chunk in flight may be the last one
            drain()
            done, timed = budget.progress(progress)
        if done >= 1:
            break
        point = int(done * evaluations)
        share = progress.evaluation_seconds / max(progress.seconds, 1e-9)
        if dispatched and point > progress.evaluated and not (timed and share > EVALUATION_SHARE):
            progress.evaluated = point
            dispatch(1, True)
        left = budget.iterations - dispatched
        if left > 0:
            dispatch(int(min(chunk, left)), False)
        while len(in_flight) > 1 or (in_flight and left <= 0):
            receive()
        last_step = max(budget.progress(progress)[0] - done, 0.0) if progress.iteration else 0.0
        if checkpoints is not None and checkpoints.due():
            drain()
            checkpoints.save(progress.iteration, state, vars(progress))
    drain()
    dispatch(1, True)
    drain()
    if checkpoints is not None:
        checkpoints.save(progress.iteration, state, vars(progress))
    return Training(state, progress, rows)


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


def _job(first: int, count: int, evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.uint32(first), jnp.int32(count), jnp.bool_(evaluating)


def _per_seed(values: np.ndarray, num_seeds: int) -> list[int]:
    """Counts [seeds, members...] or [members...] of one seed, summed over members."""
    return [int(x) for x in np.asarray(values).reshape(num_seeds, -1).sum(1)]


def _row(progress: Progress, metrics: dict[str, np.ndarray], num_seeds: int, kind: str, duration: float) -> Row:
    """A record that JSON can hold: totals and metrics of the runs together, and apart where there are several."""
    row: Row = {"kind": kind, "iteration": progress.iteration, "seconds": progress.seconds, "duration": duration}
    row["compile_seconds"] = progress.compile_seconds
    totals = dict(progress.totals)
    apart: dict[str, list[float]] = {}
    for name, values in metrics.items():
        if name not in COUNTS:
            apart[name] = np.asarray(values, np.float64).reshape(num_seeds, -1).mean(1).tolist()
    row |= {name: sum(values) // num_seeds for name, values in totals.items()}
    row |= {name: math.fsum(values) / num_seeds for name, values in apart.items()}
    if num_seeds > 1:
        row["seeds"] = totals | apart
    return row
