"""Several trials trained in one program; when one ends, the next takes its place."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.errors import LockedError, OptionError, require
from evorl.metrics import count_episodes, reduce_rounds
from evorl.parts import resolve_numbers
from evorl.replay.state_replays import join_replays, split_replays
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.trial_queue import TrialQueue
from evorl.sweeps.trial_training import LOCK_SECONDS, TrialRecorder, open_recorders, prepare_trial
from evorl.sweeps.trials import FAILED, SweepTrial
from evorl.training import runs
from evorl.training.demonstrations import require_demonstrations
from evorl.training.devices import compiler_options, fast_compile_options, use_precision
from evorl.training.driver import BEST_KEY_OFFSET, FINAL_EPISODES
from evorl.training.dry_run import limit_budget
from evorl.training.host_envs import find_host_envs
from evorl.training.nans import DivergenceMonitor, StepMonitor, describe_divergence, find_failure_reason
from evorl.training.program import Program, fold_keys, map_sequentially
from evorl.training.progress import BudgetUsage, Progress, StepBound
from evorl.training.records import files
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import make_row
from evorl.training.training_log import TrainingLog
from evorl.types import Metrics, State
from evorl.workflows.base import max_env_steps


@dataclass
class ActiveTrial:
    """Trial that is trained in a program, with its logs and checkpoints."""

    trial: SweepTrial
    data: dict[str, Any]
    training_log: TrainingLog
    trial_recorder: TrialRecorder
    checkpoints: Checkpoints
    exit_stack: ExitStack
    max_steps: StepBound

    @property
    def progress(self) -> Progress:
        """Return the progress of the training."""
        return self.training_log.progress

    @property
    def evaluation_share(self) -> float:
        """Return the maximum share of evaluations in the env steps."""
        return 1.0 if self.data["evaluation_share"] is None else self.data["evaluation_share"]

    def compute_used_share(self) -> float:
        """Return the used share of the budget, as in a separate training (`Driver.compute_used_share`)."""
        return self.training_log.budget.compute_used_share(self._get_usage())

    def count_fitting_iterations(self, count: int) -> int:
        """Return how many of `count` iterations may start within the budget (`Driver.limit_iterations`)."""
        return int(
            min(
                count,
                self.training_log.budget.count_remaining_iterations(
                    self._get_usage(), self.progress.iteration, self.max_steps
                ),
            )
        )

    def _get_usage(self) -> BudgetUsage:
        before, done, now = self.progress.recent_usage
        return now if self.training_log.budget.may_end(before, done, self.progress.iteration, self.max_steps) else done

    def claim_evaluation(self) -> bool:
        """Return whether to evaluate now, and if so, mark the point of the schedule (`Driver.claim_evaluation`)."""
        used, progress = self.compute_used_share(), self.progress
        if used >= 1 or self.trial_recorder.must_end:
            return False
        has_room = progress.has_evaluation_room(progress.recent_usage[1].env_steps, self.evaluation_share)
        return progress.claim_evaluation(int(used * self.data["evaluations"]), has_room)


class TrialBatch:
    """Batch of n trials trained in one program. They differ only in hyperparameters and budgets.

    Each trial has the random keys of a separate run. On a CPU, the trials are trained sequentially, each as
    far as its own budget allows, and their results are bitwise identical to separate runs. On other devices,
    they are vmapped. The results then agree up to rounding, and all trials are evaluated whenever one is (see
    `Program`).
    """

    def __init__(
        self, queue: TrialQueue, definition: SweepDefinition, trials: Sequence[SweepTrial], vmapped: bool | None = None
    ) -> None:
        self.queue, self.definition = queue, definition
        data = definition.build_configuration(trials[0].values)
        self.workflow, _ = runs.build(data)
        numbers = resolve_numbers(self.workflow)
        self.chunk, self.max_steps = runs.get_chunk_size(data), StepBound(*max_env_steps(self.workflow))
        self.vmapped = jax.default_backend() != "cpu" if vmapped is None else vmapped
        self.program = Program(self.workflow, [data["seed"]] * len(trials), self.chunk, self.vmapped)
        self.keys, self.mesh = self.program.keys, self.program.mesh
        with jax.set_mesh(self.mesh), use_precision(data.get("precision")):
            self.shapes = jax.eval_shape(self.workflow.init, self.keys[0, 0], numbers)
            self._init = jax.jit(self.workflow.init).lower(self.keys[0, 0], numbers).compile(fast_compile_options())
            self._get_light_state = jax.jit(lambda state, i: tree.index(split_replays(state)[0], i))
            self._set_state = jax.jit(tree.set_row, donate_argnums=0)
            self._exchange = jax.jit(_replace_light_state, donate_argnums=0)
        self._step_monitor = StepMonitor()
        self.active_trials: list[ActiveTrial | None] = [None] * len(trials)
        states = [self._open_trial(i, trial) for i, trial in enumerate(trials)]
        if not (whole := [state for state in states if state is not None]):
            return
        self.state = tree.stack([whole[0] if state is None else state for state in states])
        jobs = self._build_jobs([0] * len(trials), False)
        with jax.set_mesh(self.mesh), use_precision(data.get("precision")):
            run = jax.jit(self._run_all, donate_argnums=0).lower(self.state, self.keys, *jobs)
            self._run = run.compile(compiler_options())
        self.divergence_monitor = DivergenceMonitor(self.program, self.state)

    def _run_all(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """Run `Program.run_one` for all trials, with one job, [n], for each."""
        one = self.program.run_one
        if not self.vmapped:
            return map_sequentially(lambda state, given: one(state, *given), state, (keys, first, count, evaluating))
        return jax.vmap(one, (0, 0, 0, None, None))(state, keys, first, count.max(), evaluating.any())

    def _build_jobs(self, counts: Sequence[int], evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the jobs: `counts` steps of each trial or, if `evaluating`, evaluations of those whose count is 1."""
        first = [0 if place is None else place.progress.iteration for place in self.active_trials]
        todo = jnp.asarray(counts, jnp.int32)
        return jnp.asarray(first, jnp.uint32), todo, (todo > 0) & evaluating

    def _open_trial(self, i: int, trial: SweepTrial) -> State | None:
        """Return the state of a trial that takes place i, from its checkpoint if it has one; None if it has failed."""
        with ExitStack() as stack:
            try:
                data, run_dir = prepare_trial(self.definition, trial, self.queue.folder)
                workflow, budget = runs.build(data)
                require(
                    not budget.is_timed,
                    "vmapped",
                    len(self.active_trials),
                    "does not support a budget in minutes; use vmapped=1",
                )
                budget = limit_budget(budget, workflow)
                told = TrialRecorder(self.queue, self.definition, trial.number, budget)
                stack.enter_context(files.lock_run_dir(run_dir, "resume", LOCK_SECONDS))
                quiet = lambda line: None  # noqa: E731
                checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"], report=quiet)
                stack.callback(checkpoints.close)
                callbacks = stack.enter_context(open_recorders(data, run_dir, told))
                training_log = TrainingLog([data["seed"]], budget, callbacks, False)
                init = partial(self._init, self.keys[i, 0], resolve_numbers(workflow))
                if checkpoints.latest_iteration is not None:
                    state, best, saved = checkpoints.restore(self.shapes, init)
                    training_log.start(best, Progress.from_dict(saved, 1))
                else:
                    state = init()
                    training_log.start(jax.device_get(split_replays(state)[0]))
                require_demonstrations(workflow, state)
                if (why := find_failure_reason(workflow, state)) is not None:
                    raise OptionError(why)
                training_log.notify_resume()
            except LockedError:
                raise
            except OptionError as error:
                self.queue.end_trial(trial.number, FAILED, message=str(error))
                return None
            place = ActiveTrial(trial, data, training_log, told, checkpoints, stack.pop_all(), self.max_steps)
        done = place.progress  # the budget may have changed since the checkpoint
        done.evaluation_point = min(
            done.evaluation_point, int(budget.compute_used_share(done.usage) * data["evaluations"])
        )
        self.active_trials[i] = place
        return state

    def train(self, stop: Callable[[], bool], more: Callable[[int], SweepTrial | None]) -> None:
        """Train the trials until none is left or `stop` is true.

        A trial that ended is replaced by one from `more`, which takes the number of trials in training.
        """
        num_vacant = 0  # places for which there is no trial
        while not stop() and any(self.active_trials):
            self._evaluate_trials([i for i, place in self._list_active() if place.claim_evaluation()], least=0)
            ended = [
                i
                for i, place in self._list_active()
                if place.compute_used_share() >= 1 or place.trial_recorder.must_end
            ]
            whole = [
                i
                for i in ended
                if self._get_active(i).compute_used_share() >= 1
                and not self._get_active(i).training_log.has_final_evaluation
            ]
            self._evaluate_trials(whole, least=FINAL_EPISODES)
            for i in ended:
                self._close_trial(i, self._get_active(i))
            if self.active_trials.count(None) == num_vacant:
                self._train_chunk()
                continue
            for i in range(len(self.active_trials)):
                self._refill(i, more)
            num_vacant = self.active_trials.count(None)
        for i, place in self._list_active():
            self._close_trial(i, place)

    def _list_active(self) -> list[tuple[int, ActiveTrial]]:
        return [(i, place) for i, place in enumerate(self.active_trials) if place is not None]

    def _get_active(self, i: int) -> ActiveTrial:
        place = self.active_trials[i]
        assert place is not None
        return place

    def _evaluate_trials(self, due: Sequence[int], least: int) -> None:
        """Evaluate trials until each has `least` episodes.

        If `least` is above 0, it is the final evaluation, as in `Driver.run_final_evaluation`.
        """
        (found, took), lights = (
            self._run_evaluation_rounds(due, least),
            {i: self._get_light_state(self.state, i) for i in due},
        )
        if not least:
            for i in due:
                self._get_active(i).training_log.record_evaluation(lights[i], found[i], took)
            return
        for i in due:
            self._get_active(i).training_log.keep_best(lights[i], found[i]["return"])
            self.state = self._exchange(self.state, jnp.int32(i), self._get_active(i).training_log.best)
        anew, took_anew = self._run_evaluation_rounds(due, least, first=BEST_KEY_OFFSET)
        for i in due:
            self.state = self._exchange(self.state, jnp.int32(i), lights[i])
            self._get_active(i).training_log.record_evaluation(lights[i], found[i], took + took_anew, anew[i])

    def _run_evaluation_rounds(
        self, due: Sequence[int], least: int, first: int = 0
    ) -> tuple[dict[int, dict[str, np.ndarray]], float]:
        """Run evaluation rounds until each trial has `least` episodes.

        Args:
            due: Places of the trials.
            least: Minimum number of episodes that ended or were cut.
            first: Number of the first round, for its random keys.

        Returns:
            The metrics by place, and the seconds for each trial.
        """
        now, rounds = time.perf_counter(), {i: list[dict[str, np.ndarray]]() for i in due}
        while left := [i for i in due if not rounds[i] or count_episodes(rounds[i], least) < least]:
            part = first + len(rounds[left[0]])
            keys = fold_keys(self.keys, part) if part else self.keys
            jobs = self._build_jobs([int(i in left) for i in range(len(self.active_trials))], True)
            self.state, _, found = self._run(self.state, keys, *jobs)
            found = jax.device_get(found)
            for i in left:
                rounds[i].append({name: x[i] for name, x in found.items()})
        took = (time.perf_counter() - now) / max(len(due), 1)
        for i in due:
            self._get_active(i).progress.seconds += took
        return {i: several[0] if len(several) == 1 else reduce_rounds(several) for i, several in rounds.items()}, took

    def _train_chunk(self) -> None:
        """Train all trials for one chunk, and divide its seconds equally among them."""
        now, counts = time.perf_counter(), [0] * len(self.active_trials)
        for i, place in self._list_active():
            counts[i] = place.count_fitting_iterations(self.chunk)
        if self.vmapped:
            counts = [min(filter(None, counts))] * len(counts)
        self.state, metrics, _ = self._run(self.state, self.keys, *self._build_jobs(counts, False))
        metrics, found = jax.device_get((metrics, self.divergence_monitor.find_nonfinite(self.state)))
        lost = self.divergence_monitor.find_diverged(found)
        took = (time.perf_counter() - now) / len(self._list_active())
        for i, place in self._list_active():
            place.progress.seconds += took
            one = place.training_log.add_chunk(counts[i], {name: x[i] for name, x in metrics.items()})
            place.training_log.record(make_row(place.progress, one, "train", took))
            problem, leaf = self._step_monitor.check(one, [None]), lost[i]
            if leaf is not None:
                problem = describe_divergence(leaf, place.progress.iteration)
            if problem is not None:
                why = find_failure_reason(self.workflow, tree.index(self.state, i))
                problem = problem if why is None else f"{problem}; {why}"
                self.queue.end_trial(place.trial.number, FAILED, message=problem)
                place.exit_stack.close()
                self.active_trials[i] = None
            elif place.checkpoints.is_due():
                self._save_trial(i, place)

    def _save_trial(self, i: int, place: ActiveTrial) -> None:
        state, progress = tree.index(self.state, i), place.progress
        place.checkpoints.save(progress.iteration, state, place.training_log.best, asdict(progress))

    def _close_trial(self, i: int, place: ActiveTrial) -> None:
        """Save a trial, and end it unless it was interrupted."""
        self._save_trial(i, place)
        place.exit_stack.close()
        finished = place.compute_used_share() >= 1 and place.training_log.has_final_evaluation
        place.trial_recorder.end(stopped=not finished)
        self.active_trials[i] = None

    def _refill(self, i: int, more: Callable[[int], SweepTrial | None]) -> None:
        """Give a place to the next trial that can be trained, if there is one."""
        while self.active_trials[i] is None and (trial := more(len(self._list_active()))) is not None:
            state = self._open_trial(i, trial)
            if state is not None:
                self.state = self._set_state(self.state, jnp.int32(i), state)


def _replace_light_state(state: State, i: jax.Array, light: State) -> State:
    """Return the states of several trials with the one in place i replaced, except for its replay buffers."""
    several, replays = split_replays(state)
    return join_replays(tree.set_row(several, i, light), replays)


def require_batchable(definition: SweepDefinition, vmapped: int) -> None:
    """Raise OptionError if the trials of a sweep cannot be trained in one program."""
    if vmapped == 1:
        return
    for values in definition.list_first_values():
        _require_batchable(definition.build_configuration(values), vmapped)


def _require_batchable(data: Mapping[str, Any], vmapped: int) -> None:
    require(data["num_seeds"] == 1, "vmapped", vmapped, f"needs num_seeds=1, not {data['num_seeds']}")
    require(data["devices"] in (None, 1), "vmapped", vmapped, f"needs devices=1, not {data['devices']}")
    require(data.get("suite") is None, "vmapped", vmapped, "does not support suite; use vmapped=1")
    require(data.get("eval_env") is None, "vmapped", vmapped, "does not support eval_env; use vmapped=1")
    workflow, budget = runs.build(data)
    require(not budget.is_timed, "vmapped", vmapped, "does not support a budget in minutes; use vmapped=1")
    require(not find_host_envs(workflow), "vmapped", vmapped, "does not support host environments; use vmapped=1")
