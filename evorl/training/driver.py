"""Driver of a training: the host loop that dispatches compiled chunks and receives their results."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.host import pool_registry
from evorl.errors import DivergedError, HostError, OptionError, require
from evorl.metrics import count_episodes, join_measures, reduce_rounds
from evorl.replay.state_replays import join_replays, split_replays
from evorl.training import processes
from evorl.training.callbacks import Callback
from evorl.training.changed_numbers import replace_numbers
from evorl.training.demonstrations import require_demonstrations
from evorl.training.devices import compiler_options, fast_compile_options
from evorl.training.dry_run import explain_index_overflow, explain_missing_numbers, require_memory
from evorl.training.host_envs import HostEnvs
from evorl.training.nans import DivergenceMonitor, StepMonitor, find_failure_reason
from evorl.training.profile import Profile
from evorl.training.program import Program, ProgramTrace, fold_keys, make_run_args
from evorl.training.progress import BudgetUsage, Progress, StepBound
from evorl.training.records.checkpoint import Checkpoints, get_leaf_shapes, require_same_shapes
from evorl.training.records.rows import make_row
from evorl.training.training_log import TrainingLog
from evorl.training.training_options import EvaluationRounds, PendingResult, TrainingOptions
from evorl.types import Numbers, State, Transition
from evorl.vector_env import hosts
from evorl.workflows.base import max_env_steps

FINAL_EPISODES = 128  # minimum episodes of the final evaluation, over all its rounds
BEST_KEY_OFFSET = 2**20  # first round index when the best policies are evaluated again, for new episodes


class Driver:
    """Driver of one training: the state on the device, the queue of dispatched work, and the log of the results."""

    def __init__(
        self,
        program: Program,
        numbers: Numbers,
        options: TrainingOptions,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        init_from: State = None,
        new_numbers: Mapping[str, float] = MappingProxyType({}),
        demonstrations: Transition | None = None,
    ) -> None:
        self.program, self.options, self.checkpoints = program, options, checkpoints
        self.budget, self.keys = options.budget, (keys := program.keys)
        self.step_bound = StepBound(*max_env_steps(program.workflow))
        self.training_log = TrainingLog(program.seeds, options.budget, callbacks, options.keep_rows)
        self.iteration_seconds: deque[float] = deque(maxlen=3)  # seconds per iteration in the last chunks
        self.snapshot = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self.training_log.notify_stage("tracing")
        with explain_index_overflow(), explain_missing_numbers():
            traced = program.trace(numbers)
        self.host_envs = HostEnvs(program.workflow, traced.init.out_info, options.evaluator)
        if self.host_envs.envs and processes.count() > 1:
            raise OptionError("distributed: is not supported with environments on the host")
        why = "is not supported with host environments, whose steps cannot be repeated"
        require(not (self.host_envs.envs and options.debug_nans), "debug.nans", True, why)
        if options.debug_nans and processes.count() > 1:
            raise OptionError("debug.nans: needs one process; use distributed=off")

        # It captures keys, not self: a cycle would keep the state and its programs until garbage collection.
        def init() -> State:
            return traced.init.lower().compile(fast_compile_options())(keys, numbers)

        self.state = self._init_state(traced, init, init_from, new_numbers, demonstrations)
        if (why := find_failure_reason(program.workflow, self.state, len(program.seeds))) is not None:
            raise OptionError(why)
        self._new_state = init if demonstrations is None else lambda: _preload(program, traced, init(), demonstrations)
        self.divergence_monitor = DivergenceMonitor(program, self.state)
        self.training_log.notify_stage("compiling")
        self.run = traced.run.compile(compiler_options())
        self.measure = lambda state: {}
        if options.measure is not None:
            self.measure = program.compile_measure(options.measure, split_replays(self.state)[0], compiler_options())
        self.evaluator: Callable[..., Any] | None = None
        if options.evaluator is not None:
            self.evaluator = program.compile_evaluator(
                options.evaluator, split_replays(self.state)[0], compiler_options()
            )
        self.training_log.notify_stage("training")
        self.arrived = time.perf_counter()
        self.started = options.start_time - self.progress.seconds
        self.progress.compile_seconds += self.arrived - options.start_time
        self.idle_since: float | None = self.arrived
        self.dispatched = self.progress.iteration
        self.in_flight: deque[PendingResult] = deque()
        self.step_monitor = StepMonitor()

    def _init_state(
        self,
        traced: ProgramTrace,
        init: Callable[[], State],
        init_from: State,
        new_numbers: Mapping[str, float],
        demonstrations: Transition | None,
    ) -> State:
        """Return the state from which training starts.

        It is the state of the newest checkpoint with `new_numbers`, if there is one. Otherwise it is a new
        state, with the weights of `init_from` and with the demonstrations in its replay buffer, if these are
        given.
        """
        shapes, checkpoints = traced.shapes, self.checkpoints
        if checkpoints is not None and checkpoints.latest_iteration is not None:
            state, best, saved = checkpoints.restore(shapes, init)
            state = jax.device_put(hosts.clear_leases(state), traced.shardings)
            if new_numbers:
                state = replace_numbers(self.program.workflow, state, new_numbers)
            self.training_log.start(best, Progress.from_dict(saved, len(self.program.seeds)), self._owns_best)
        else:
            require_memory(shapes, len(self.program.seeds))
            if checkpoints is not None:
                checkpoints.check_disk_space(shapes)
            state = init()
            if init_from is not None:
                own = {name: self.snapshot(getattr(state, name)) for name in ("numbers", "env_params")}
                parent = replace(init_from, **own)  # a new run keeps its own numbers and env_params
                remedy = "; use the algorithm, networks and environment of that run"
                light = split_replays(shapes)[0]
                require_same_shapes("the state of init_from", get_leaf_shapes(parent), light, remedy)
                place = lambda x, like: jax.device_put(x, like.sharding)  # noqa: E731
                parent = jax.tree.map(place, parent, split_replays(state)[0])
                inherit = jax.jit(self.program.inherit, donate_argnums=0, out_shardings=traced.shardings)
                state = inherit(state, parent)
            if demonstrations is not None:
                state = _preload(self.program, traced, state, demonstrations)
            self.training_log.start(self.snapshot(split_replays(state)[0]), owned=self._owns_best)
        require_demonstrations(self.program.workflow, state)
        if checkpoints is not None:
            self.training_log.notify_resume()
        return state

    @property
    def _owns_best(self) -> bool:
        """Return whether the best policies stay on the device; a GPU has less memory than its host."""
        return jax.default_backend() == "cpu" or processes.count() > 1

    @property
    def progress(self) -> Progress:
        """Return the progress of the training."""
        return self.training_log.progress

    def compute_used_share(self) -> float:
        """Return the used share of the budget, without the last chunk unless that may be the last of the training.

        The result therefore depends only on the chunks, not on which of them have been received, nor on where
        a run was resumed.
        """
        return processes.agreed(self.budget.compute_used_share(self._get_usage()))

    def _get_usage(self) -> BudgetUsage:
        """Return the budget usage without the last dispatched chunk.

        If that chunk may be the last of the training, wait for it and include it.
        """
        before, done = self._recent_usage
        if not self.budget.may_end(before, done, self.dispatched, self.step_bound):
            return done
        self.receive()
        return self.progress.usage

    @property
    def _recent_usage(self) -> list[BudgetUsage]:
        """Return the budget usage after all dispatched chunks but the last two, and after all but the last one."""
        first = int(any(sent.count for sent in self.in_flight))
        return self.progress.recent_usage[first : first + 2]

    def limit_iterations(self, count: int) -> int:
        """Return how many of `count` iterations may start.

        None starts after an iteration that may use up the budget, or if it is expected to end after the time
        limit.
        """
        count = int(
            min(count, self.budget.count_remaining_iterations(self._get_usage(), self.dispatched, self.step_bound))
        )
        if not self.budget.is_timed or not count:
            return count
        count = processes.agreed(self._limit_by_time(count))
        self.training_log.is_out_of_time = not count
        return count

    def _limit_by_time(self, count: int) -> int:
        """Return how many of `count` iterations are expected to end before the time limit."""
        self.receive(all_but=0 if self._get_remaining_seconds() < 3 * count * self.progress.iteration_seconds else 1)
        if not self.progress.iteration_seconds:
            return 1
        pending = sum(
            sent.count * self.progress.iteration_seconds or self.training_log.evaluation_duration
            for sent in self.in_flight
        )
        return int(min(count, max((self._get_remaining_seconds() - pending) / self.progress.iteration_seconds, 0)))

    def _get_remaining_seconds(self) -> float:
        """Return the remaining seconds of the budget."""
        return 60 * self.budget.minutes - (time.perf_counter() - self.started - self.progress.compile_seconds)

    def claim_evaluation(self, point: int) -> bool:
        """Return whether to evaluate at this point of the schedule, and if so, mark the point as evaluated.

        An evaluation is postponed while evaluations would exceed their share of the budget.
        """
        done = self.progress
        if done.initial_evaluation is None:
            room = True
        elif self.budget.is_timed:
            cost, spent = self.training_log.evaluation_duration, done.evaluation_seconds
            room = spent + cost <= self.options.evaluation_share * (done.seconds - done.compile_seconds + cost)
            room = processes.agreed(room)
        else:
            room = done.has_evaluation_room(
                self._recent_usage[1].env_steps * len(self.program.seeds), self.options.evaluation_share
            )
        return done.claim_evaluation(point, room)

    def dispatch(self, count: int, evaluating: bool, part: int = 0, fallback_state: State = None) -> None:
        """Dispatch a chunk of iterations or one round of an evaluation, without waiting for earlier work.

        Args:
            count: Number of iterations; 1 for an evaluation.
            evaluating: Whether to evaluate instead of training.
            part: Index of the evaluation round.
            fallback_state: State to return to if an environment on the host fails, without replay buffers;
                None for the current state.
        """
        if self.idle_since is not None:
            self.arrived = time.perf_counter()
            self.progress.idle_seconds += self.arrived - self.idle_since
            self.idle_since = None
        before = self.snapshot(self.state) if self.options.debug_nans and not evaluating else None
        newest = pool_registry.newest_lease()
        if self.host_envs.envs and fallback_state is None:
            fallback_state = self.snapshot(split_replays(self.state)[0])
        keys = fold_keys(self.keys, part) if part else self.keys
        todo = make_run_args(self.dispatched, count, evaluating)
        metrics: Any = {}
        if evaluating and self.evaluator is not None:
            evaluation = self.evaluator(split_replays(self.state)[0], keys, todo[0])
        else:
            self.state, metrics, evaluation = self.run(self.state, keys, *todo)
        status = self.host_envs.query_status(newest, (evaluation, self.state))
        host = {"fallback_state": fallback_state, "host_status": status}
        if evaluating:
            measured = {} if part else self.measure(split_replays(self.state)[0])  # once, in the first round
            self.in_flight.append(PendingResult(0, evaluation, measured, **host))
        else:
            found = self.divergence_monitor.find_nonfinite(self.state)
            self.in_flight.append(PendingResult(count, metrics, nonfinite_leaves=found, start_state=before, **host))
            self.dispatched += count

    def evaluate(self) -> None:
        """Evaluate the current state and wait for the result: the next chunk overwrites the state."""
        self.dispatch(1, evaluating=True)
        self.receive()

    def receive(self, all_but: int = 0) -> None:
        """Wait for all pending results except the last `all_but`, and pass them to the callbacks row by row.

        Raises:
            DivergedError: Every run has diverged, or one has with `debug_nans`, or no environment step was
                valid.
            HostError: An environment on the host has failed.
        """
        while len(self.in_flight) > all_but:
            sent, metrics, found, duration = self._receive_oldest()
            if not sent.count:
                light = split_replays(self.state)[0]
                self.training_log.record_evaluation(light, join_measures(metrics, sent.extra_metrics), duration)
                continue
            self.iteration_seconds.append(duration / sent.count)
            self.progress.iteration_seconds = max(self.iteration_seconds)
            metrics = self.training_log.add_chunk(sent.count, metrics)
            problem = self.divergence_monitor.check_chunk(found, self.progress, sent, self.options.debug_nans)
            if problem is None and not self.host_envs.envs:
                problem = self.step_monitor.check(metrics, self.progress.divergence_iterations)
            self.training_log.record(make_row(self.progress, metrics, "train", duration))
            if problem is not None:
                why = find_failure_reason(self.program.workflow, self.state, len(self.program.seeds))
                raise DivergedError(problem if why is None else f"{problem}; {why}")

    def run_final_evaluation(self, stop: Callable[[], bool]) -> None:
        """Run the last evaluation, and evaluate the best policies again in new episodes.

        The best policies were selected by their return, so the return that selected them is biased high. Each
        evaluation has rounds until it has 128 episodes. If the budget has minutes, no round starts that would
        exceed the evaluation share of both evaluations together, except the first round of each. If training
        is stopped, the rounds are discarded, so that a resumed run makes the whole evaluation and gets the
        same row.
        """
        longest = 60 * self.options.evaluation_share * self.budget.minutes
        last = self._run_evaluation_rounds(stop, longest)
        if last is None:
            return
        log, (light, replay) = self.training_log, split_replays(self.state)
        log.keep_best(light, last.metrics["return"])
        moved = self._owns_best and not self.host_envs.envs  # an evaluation returns the arrays that it takes
        best = log.best if moved else self.snapshot(hosts.clear_leases(log.best))
        places = jax.tree.map(lambda x: x.sharding, light)
        self.state = join_replays(jax.device_put(best, places), replay)
        anew = self._run_evaluation_rounds(stop, longest - last.seconds, BEST_KEY_OFFSET, light)
        evaluated, replay = split_replays(self.state)
        log.best = evaluated if moved else log.best
        self.state = join_replays(light, replay)
        if anew is not None:
            log.record_evaluation(light, last.metrics, last.seconds + anew.seconds, anew.metrics)

    def _run_evaluation_rounds(
        self, stop: Callable[[], bool], longest: float, first: int = 0, fallback_state: State = None
    ) -> EvaluationRounds | None:
        """Run rounds of an evaluation until 128 episodes have ended or were cut; return None if training is stopped.

        Args:
            stop: Returns whether to stop; called before each round.
            longest: Maximum duration in seconds. The first round always runs.
            first: Index of the first round, which determines the random keys.
            fallback_state: See `dispatch`.
        """
        rounds: list[dict[str, np.ndarray]] = []
        measured: dict[str, np.ndarray] = {}
        seconds = 0.0
        while not rounds or processes.agreed(seconds * (1 + 1 / len(rounds)) <= longest):
            if stop():
                return None
            self.dispatch(1, evaluating=True, part=first + len(rounds), fallback_state=fallback_state)
            sent, metrics, _, duration = self._receive_oldest()
            rounds, seconds = [*rounds, metrics], seconds + duration
            measured |= sent.extra_metrics
            if count_episodes(rounds, FINAL_EPISODES).min() >= FINAL_EPISODES:
                break
        return EvaluationRounds(join_measures(reduce_rounds(rounds), measured), seconds)

    def _receive_oldest(self) -> "tuple[PendingResult, dict[str, np.ndarray], Any, float]":
        """Wait for the oldest pending result.

        Returns:
            The pending result, its metrics, the output of the divergence monitor, and its duration in
            seconds.
        """
        sent = self.in_flight.popleft()
        metrics, found, measured, look = jax.device_get(
            (sent.metrics, sent.nonfinite_leaves, sent.extra_metrics, sent.host_status)
        )
        now = time.perf_counter()
        duration, self.arrived, self.progress.seconds = now - self.arrived, now, now - self.started
        if not self.in_flight:
            self.idle_since = now
        if not self.host_envs.release_unused_leases(look):
            self._revert_and_raise(sent.fallback_state)
        return replace(sent, extra_metrics=measured), metrics, found, duration

    def _revert_and_raise(self, fallback_state: State) -> NoReturn:
        """Save the state from before an environment on the host failed, and raise HostError.

        The replay buffer keeps the transitions collected until the failure. If no iteration was completed, it
        is that of a new state.
        """
        self.in_flight.clear()
        later = self.state if self.progress.iteration else self._new_state()
        self.state, self.dispatched = join_replays(fallback_state, split_replays(later)[1]), self.progress.iteration
        if self.checkpoints is not None:
            self.save()
        fault = pool_registry.find_fault()
        self.host_envs.close()
        raise HostError(f"an environment has failed: {fault}")

    def trace_iteration(self, profile: Profile) -> None:
        """Run one iteration under the profiler, if the budget has one left."""
        self.receive()
        if self.budget.count_remaining_iterations(self.progress.usage, self.dispatched, self.step_bound) >= 1:
            with profile.trace(self.run) if processes.is_first() else nullcontext():
                self.dispatch(1, evaluating=False)
                self.receive()

    def save(self) -> None:
        """Save a checkpoint of the current state; nothing may be in flight."""
        assert self.checkpoints is not None
        now = time.perf_counter()
        self.checkpoints.save(self.progress.iteration, self.state, self.training_log.best, asdict(self.progress))
        self.progress.host_seconds += time.perf_counter() - now


def _preload(program: Program, traced: ProgramTrace, state: State, demonstrations: Transition) -> State:
    """Return a new state with demonstrations in its replay buffers."""
    preload = jax.jit(program.preload, donate_argnums=0, out_shardings=traced.shardings)
    return preload(state, demonstrations)
