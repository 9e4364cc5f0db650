"""The journal of a training: how far it has come, its best policies and its rows, of which the callbacks are told."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.metrics import BEST, COUNTS, ERROR, MEASURED_STEPS, reduce
from evorl.training.callbacks import Callback, Follows, Resumes
from evorl.training.progress import Budget, Progress
from evorl.training.records.rows import Row, interval, per_seed, row_of
from evorl.types import State

ALWAYS = ("env_steps", "episodes", "gradient_steps")  # counts that every step has


class Journal:
    """What has come back of the device: counted, compared with the best, and told to the callbacks row by row."""

    def __init__(self, seeds: Sequence[int], budget: Budget, callbacks: Sequence[Callback], keep_rows: bool) -> None:
        self.num_seeds, self.budget, self.callbacks, self.keep_rows = len(seeds), budget, callbacks, keep_rows
        self.progress, self.rows = Progress(), list[Row]()
        self.progress.diverged *= self.num_seeds
        self.best: State = None  # without replays, at each run's best evaluation
        self.full = False  # no iteration more would end in time
        self.evaluation_took = 0.0  # seconds, the last one

    def begin(self, best: State, progress: Progress | None = None) -> None:
        """Takes what there is before the first row: the policies to be beaten, and how far a checkpoint had come."""
        self.best, self.progress = best, progress or self.progress

    def stage(self, name: str) -> None:
        """Tells the callbacks what has begun."""
        for callback in self.callbacks:
            if isinstance(callback, Follows):
                callback.stage(name)

    def resume(self) -> None:
        """Tells them what a training with checkpoints goes on from."""
        for callback in self.callbacks:
            if isinstance(callback, Resumes):
                callback.resume(self.progress)

    @property
    def finished(self) -> bool:
        """Whether the budget is used."""
        return self.full or self.budget.used(self.progress.mark) >= 1

    @property
    def examined(self) -> bool:
        """Return whether the last evaluation is made."""
        return self.progress.examined == self.progress.iteration

    def evaluated(
        self,
        state: State,
        metrics: dict[str, np.ndarray],
        duration: float,
        anew: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Record an evaluation of a state, which is kept if it is the best so far.

        Args:
            state: of all runs, without replays.
            metrics: of the evaluation.
            duration: in seconds, of all that is recorded here.
            anew: of the last evaluation, the metrics of a new one of the best policies, see `keep_best`.
        """
        done = self.progress
        done.examined = done.examined if anew is None else done.iteration
        steps = _steps(metrics) + (0 if anew is None else _steps(anew))
        self.evaluation_took, done.last_evaluation_steps = duration, steps
        done.evaluation_seconds += duration
        done.evaluation_steps += steps
        self.keep_best(state, metrics["return"])
        for name in COUNTS:  # so that the rows before the first iteration have them too
            if name in ALWAYS or name in metrics:
                done.totals.setdefault(name, [0] * self.num_seeds)
        of_best = {} if anew is None else {f"{BEST}{name}": anew[name] for name in ("return", ERROR) if name in anew}
        row = row_of(done, metrics | of_best, "evaluation", duration)
        done.last = self._summary(row, metrics)
        done.first = done.first or done.last
        done.tested = done.tested if anew is None else self._summary(row, anew, BEST)
        self.record(row)

    def _summary(self, row: Row, metrics: dict[str, np.ndarray], of: str = "") -> dict[str, float]:
        """Return what is kept of an evaluation with these metrics: that of a row, or of the best policies in it."""
        low, high = interval(row, of, float(np.sum(metrics.get("episodes", np.inf))))
        return {"env_steps": self.progress.mean("env_steps"), "return": row[f"{of}return"], "low": low, "high": high}

    def record(self, row: Row) -> None:
        """Keeps a row, and hands it to the callbacks."""
        now = time.perf_counter()
        row["progress"] = 1.0 if self.full else self.budget.used(self.progress.mark)
        if not self.keep_rows:
            self.rows.clear()
        self.rows.append(row)
        self.progress.rows[row["kind"]] += 1
        for callback in self.callbacks:
            callback(row)
        self.progress.host_seconds += time.perf_counter() - now

    def keep_best(self, evaluated: State, returns: np.ndarray) -> None:
        """Put the evaluated states in the place of those that they beat; returns leads as all leaves do."""
        before = np.full(returns.shape, -np.inf) if self.progress.best is None else np.asarray(self.progress.best)
        returns = np.where(np.isnan(returns), -np.inf, returns)
        better = np.asarray((returns > before) | np.isneginf(before))
        if better.any():
            self.best = jax.tree.map(partial(_where, better), jax.device_get(evaluated), self.best)
        self.progress.best = np.where(better, returns, before).tolist()

    def count(self, count: int, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Adds a chunk to the progress; returns its metrics as those of one step."""
        by_step = {name: np.moveaxis(np.asarray(x), int(self.num_seeds > 1), 0)[:count] for name, x in metrics.items()}
        metrics = {name: np.asarray(x) for name, x in reduce(by_step).items()}
        self.progress.iteration += count
        for name in COUNTS:
            if name in metrics:
                self.progress.add(name, per_seed(metrics[name], self.num_seeds))
        self.progress.marks = [*self.progress.marks[1:], self.progress.mark]
        return metrics


def _where(mask: Any, new: Any, old: Any) -> Any:
    """new where mask, which leads, old elsewhere; NumPy knows no keys."""
    is_key = jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
    return (jnp if is_key else np).where(mask.reshape(mask.shape + (1,) * (old.ndim - mask.ndim)), new, old)


def _steps(metrics: dict[str, np.ndarray]) -> int:
    """Return the env steps of an evaluation."""
    played = int(np.sum(metrics["episodes"] * metrics["episode_length"])) if "episodes" in metrics else 0
    return played + int(np.sum(metrics.get(MEASURED_STEPS, 0)))
