"""Log of a training: progress, best policies, and rows, which are passed to the callbacks."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.metrics import BEST_PREFIX, COUNTS, RETURN_DOF, RETURN_ERROR, count_evaluation_steps, reduce_steps
from evorl.training.callbacks import Callback, ResumeCallback, StageCallback
from evorl.training.progress import Budget, Progress
from evorl.training.records.rows import Row, compute_return_interval, make_row, per_seed
from evorl.types import State

DEFAULT_COUNTS = ("env_steps", "episodes", "gradient_steps")  # counts that every row has


class TrainingLog:
    """Log of the results that the driver receives.

    It adds them up, keeps the best policies, and passes each row to the callbacks.
    """

    def __init__(self, seeds: Sequence[int], budget: Budget, callbacks: Sequence[Callback], keep_rows: bool) -> None:
        self.num_seeds, self.budget, self.callbacks, self.keep_rows = len(seeds), budget, callbacks, keep_rows
        self.progress, self.rows = Progress(), list[Row]()
        self.progress.divergence_iterations *= self.num_seeds
        self.best: State = None  # state at the best evaluation of each run, without replay buffers
        self._owns_best = False
        self.is_out_of_time = False  # another iteration would exceed the time limit
        self.evaluation_duration = 0.0  # seconds of the last evaluation

    def start(self, best: State, progress: Progress | None = None, owned: bool = False) -> None:
        """Set the initial best policies and, when resuming, the progress of the checkpoint.

        If the log owns the arrays of `best`, it overwrites them in place.
        """
        self.best, self.progress, self._owns_best = best, progress or self.progress, owned

    def notify_stage(self, name: str) -> None:
        """Notify the callbacks of the start of a stage."""
        for callback in self.callbacks:
            if isinstance(callback, StageCallback):
                callback.start_stage(name)

    def notify_resume(self) -> None:
        """Notify the callbacks of the progress from which a training with checkpoints starts."""
        for callback in self.callbacks:
            if isinstance(callback, ResumeCallback):
                callback.resume(self.progress)

    @property
    def is_finished(self) -> bool:
        """Return whether the budget is used up."""
        return self.is_out_of_time or self.budget.compute_used_share(self.progress.usage) >= 1

    @property
    def has_final_evaluation(self) -> bool:
        """Return whether the last evaluation has been made."""
        return self.progress.final_evaluation_iteration == self.progress.iteration

    def record_evaluation(
        self,
        state: State,
        metrics: dict[str, np.ndarray],
        duration: float,
        best_metrics: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Record an evaluation of a state, and keep the state if it is the best so far.

        Args:
            state: State of all runs, without replay buffers.
            metrics: Metrics of the evaluation.
            duration: Duration of everything recorded here, in seconds.
            best_metrics: Metrics of the second evaluation of the best policies, only at the end of training;
                otherwise None.
        """
        done = self.progress
        done.final_evaluation_iteration = done.final_evaluation_iteration if best_metrics is None else done.iteration
        steps = sum(int(np.sum(count_evaluation_steps(one))) for one in (metrics, best_metrics or {}))
        if best_metrics is None:  # the last evaluation is longer than the others
            self.evaluation_duration, done.latest_evaluation_steps = duration, steps
        done.evaluation_seconds += duration
        done.evaluation_steps += steps
        self.keep_best(state, metrics["return"])
        for name in COUNTS:  # so that rows before the first iteration have these counts
            if name in DEFAULT_COUNTS or name in metrics:
                done.totals.setdefault(name, [0] * self.num_seeds)
        of_best = (
            {}
            if best_metrics is None
            else {
                f"{BEST_PREFIX}{name}": best_metrics[name] for name in ("return", RETURN_ERROR) if name in best_metrics
            }
        )
        shown = {name: x for name, x in metrics.items() if name != RETURN_DOF}
        row = make_row(done, shown | of_best, "evaluation", duration)
        done.latest_evaluation = self._summarize(row, metrics)
        done.initial_evaluation = done.initial_evaluation or done.latest_evaluation
        done.best_reevaluation = (
            done.best_reevaluation if best_metrics is None else self._summarize(row, best_metrics, BEST_PREFIX)
        )
        self.record(row)

    def _summarize(self, row: Row, metrics: dict[str, np.ndarray], prefix: str = "") -> dict[str, float]:
        """Return what the progress keeps of an evaluation: env steps, return, and its interval.

        With the prefix "best_", these are values of the best policies.
        """
        episodes = float(np.sum(metrics.get("episodes", np.inf)))
        freedom = float(np.sum(metrics[RETURN_DOF])) if RETURN_DOF in metrics else None
        low, high = compute_return_interval(row, prefix, episodes, freedom)
        return {
            "env_steps": self.progress.mean("env_steps"),
            "return": row[f"{prefix}return"],
            "low": low,
            "high": high,
        }

    def record(self, row: Row) -> None:
        """Keep a row and pass it to the callbacks."""
        now = time.perf_counter()
        row["progress"] = 1.0 if self.is_out_of_time else self.budget.compute_used_share(self.progress.usage)
        if not self.keep_rows:
            self.rows.clear()
        self.rows.append(row)
        self.progress.row_counts[row["kind"]] += 1
        for callback in self.callbacks:
            callback(row)
        self.progress.host_seconds += time.perf_counter() - now

    def keep_best(self, evaluated: State, returns: np.ndarray) -> None:
        """Keep the evaluated state of each run whose return is not lower than its best so far.

        The last one of equal returns counts, since the mean return over all agents of a zero-sum game is always 0.
        `returns` has the leading axes of the leaves of the state.
        """
        before = (
            np.full(returns.shape, -np.inf)
            if self.progress.best_returns is None
            else np.asarray(self.progress.best_returns)
        )
        returns = np.where(np.isnan(returns), -np.inf, returns)
        better = np.asarray(returns >= before)
        if better.any() and self._owns_best:
            self.best = _overwrite(self.best, evaluated, better)
        elif better.any():
            self.best = jax.tree.map(partial(_select, better), jax.device_get(evaluated), self.best)
        self.progress.best_returns = np.where(better, returns, before).tolist()

    def add_chunk(self, count: int, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add a chunk of `count` iterations to the progress, and return its metrics reduced over the iterations."""
        by_step = {name: np.moveaxis(np.asarray(x), int(self.num_seeds > 1), 0)[:count] for name, x in metrics.items()}
        metrics = {name: np.asarray(x) for name, x in reduce_steps(by_step).items()}
        self.progress.iteration += count
        for name in COUNTS:
            if name in metrics:
                self.progress.add(name, per_seed(metrics[name], self.num_seeds))
        self.progress.recent_usage = [*self.progress.recent_usage[1:], self.progress.usage]
        return metrics


@partial(jax.jit, donate_argnums=0)
def _overwrite(best: State, new: State, mask: Any) -> State:
    """Overwrite the best states with the new ones where the mask is True; the mask has the leading axes."""
    return tree.select(mask, new, best)


def _select(mask: Any, new: Any, old: Any) -> Any:
    """Select `new` where the mask is True, and `old` elsewhere, on the host; random keys need jnp."""
    in_numpy = isinstance(new, np.ndarray | np.generic)
    return (np if in_numpy else jnp).where(mask.reshape(mask.shape + (1,) * (old.ndim - mask.ndim)), new, old)
