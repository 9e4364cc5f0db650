"""Trials of one shape in one program: where one ends, the next takes its place."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.errors import OptionError, require
from evorl.metrics import episodes_played, over_rounds
from evorl.replay import join, split
from evorl.sweeps.definition import Definition
from evorl.sweeps.single import Told, opened, recording
from evorl.sweeps.store import Store
from evorl.sweeps.trials import FAILED, Trial
from evorl.training import runs
from evorl.training.devices import compiler_options
from evorl.training.driver import LAST_EPISODES, OF_BEST
from evorl.training.hosts import environments
from evorl.training.journal import Journal
from evorl.training.nans import Sentinel, diverged
from evorl.training.program import RUNS_ONCE, Program, in_turn
from evorl.training.progress import Mark, Most, Progress
from evorl.training.records import files
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import row_of
from evorl.types import Metrics, State
from evorl.workflows.base import most_steps


@dataclass
class Place:
    """A trial in a program, and what is known of it."""

    trial: Trial
    data: dict[str, Any]
    journal: Journal
    told: Told
    checkpoints: Checkpoints
    opened: ExitStack
    begun: int  # its iterations when it took the place
    most: Most

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self.journal.progress

    @property
    def share(self) -> float:
        """Of the env steps, that evaluations take at most."""
        return 1.0 if self.data["evaluation_share"] is None else self.data["evaluation_share"]

    def used(self) -> float:
        """The part of its budget that is used, as a training of its own counts it: see Driver.used."""
        return self.journal.budget.used(self._known())

    def fitting(self, count: int) -> int:
        """How many of count iterations may begin: see Driver.fitting."""
        return int(min(count, self.journal.budget.room(self._known(), self.progress.iteration, self.most)))

    def _known(self) -> Mark:
        before, done, now = (Mark(*mark) for mark in self.progress.marks)
        return now if self.journal.budget.may_end(before, done, self.progress.iteration, self.most) else done

    def is_due(self, point: int) -> bool:
        """Whether this point of its schedule is to be evaluated; see Driver.evaluation_is_due."""
        done = self.progress
        if point <= done.evaluated or not done.has_room(done.marks[1].env_steps, self.share):
            return False
        done.evaluated = point
        return True


class SideBySide:
    """n trials in one program that differ in hyperparameters and budgets alone; each has the keys of a run of its own.

    On a CPU they go in turn, each as far as its own budget says, and are the same bits as alone; elsewhere they are
    vmapped, which is the same to rounding, and all are evaluated where one is (see Program).
    """

    def __init__(
        self, store: Store, definition: Definition, trials: Sequence[Trial], vmapped: bool | None = None
    ) -> None:
        self.store, self.definition = store, definition
        data = definition.configuration(trials[0].values)
        self.workflow, hyperparams, _ = runs.build(data)
        self.chunk, self.most = runs.chunk(data), Most(*most_steps(self.workflow))
        self.vmapped = jax.default_backend() != "cpu" if vmapped is None else vmapped
        self.program = Program(self.workflow, [data["seed"]] * len(trials), self.chunk, self.vmapped)
        self.keys, self.mesh = self.program.keys, self.program.mesh
        with jax.set_mesh(self.mesh):
            self.shapes = jax.eval_shape(self.workflow.init, self.keys[0, 0], hyperparams)
            self._init = jax.jit(self.workflow.init).lower(self.keys[0, 0], hyperparams).compile(RUNS_ONCE)
            self._light = jax.jit(lambda state, i: tree.index(split(state)[0], i))
            self._put = jax.jit(tree.put, donate_argnums=0)
            self._exchange = jax.jit(_exchanged, donate_argnums=0)
        self.places: list[Place | None] = [None] * len(trials)
        states = [self._open(i, trial) for i, trial in enumerate(trials)]
        if not (whole := [state for state in states if state is not None]):
            return
        self.state = tree.stack([whole[0] if state is None else state for state in states])
        jobs = self._jobs([0] * len(trials), False)
        with jax.set_mesh(self.mesh):
            run = jax.jit(self._all, donate_argnums=0).lower(self.state, self.keys, *jobs)
            self._run = run.compile(compiler_options())
        self.sentinel = Sentinel(self.program, self.state, [place is None for place in self.places])

    def _all(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """Program.run, with a job [n] for each."""
        one = self.program.run_one
        if not self.vmapped:
            return in_turn(lambda state, given: one(state, *given), state, (keys, first, count, evaluating))
        return jax.vmap(one, (0, 0, 0, None, None))(state, keys, first, count.max(), evaluating.any())

    def _jobs(self, counts: Sequence[int], evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """So many steps of each, or an evaluation of those whose count is 1."""
        first = [0 if place is None else place.progress.iteration for place in self.places]
        todo = jnp.asarray(counts, jnp.int32)
        return jnp.asarray(first, jnp.uint32), todo, (todo > 0) & evaluating

    def _open(self, i: int, trial: Trial) -> State | None:
        """The state of a trial that takes place i, from its checkpoint where it has one; None where it has failed."""
        with ExitStack() as stack:
            try:
                data, run_dir = opened(self.definition, trial, self.store.folder)
                _, hyperparams, budget = runs.build(data)
                require(not budget.is_timed, "vmapped", len(self.places), "minutes are of one run alone")
                told = Told(self.store, self.definition, trial.number, budget)
                stack.enter_context(files.locked(run_dir, "resume"))
                quiet = lambda line: None  # noqa: E731
                checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"], report=quiet)
                stack.callback(checkpoints.close)
                callbacks = stack.enter_context(recording(data, run_dir, told))
                journal = Journal([data["seed"]], budget, callbacks, False)
                if checkpoints.latest is not None:
                    state, best, saved = checkpoints.restore(self.shapes)
                    journal.begin(best, Progress.of(saved, 1))
                else:
                    state = self._init(self.keys[i, 0], hyperparams)
                    journal.begin(jax.device_get(split(state)[0]))
                journal.resume()
            except OptionError as error:
                self.store.end(trial.number, FAILED, message=str(error))
                return None
            begun = journal.progress.iteration
            place = Place(trial, data, journal, told, checkpoints, stack.pop_all(), begun, self.most)
        done = place.progress  # which may have been given another budget
        done.evaluated = min(done.evaluated, int(budget.used(done.mark) * data["evaluations"]))
        self.places[i] = place
        return state

    def train(self, stop: Callable[[], bool], more: Callable[[], Trial | None]) -> None:
        """Trains them, and those that more gives once there is a place, until none is left or it is to stop."""
        while not stop() and any(self.places):
            self._examine([i for i, place in self._there() if self._is_due(place)], least=0)
            ended = [i for i, place in self._there() if place.used() >= 1 or place.told.behind]
            whole = [i for i in ended if self._at(i).used() >= 1 and self._at(i).progress.iteration > self._at(i).begun]
            self._examine(whole, least=LAST_EPISODES)
            for i in ended:
                self._close(i, self._at(i))
                self._refill(i, more)
            self._examine([i for i in ended if self.places[i] is not None and self._is_due(self._at(i))], least=0)
            if any(self.places):
                self._advance()
        for i, place in self._there():
            self._close(i, place)

    def _there(self) -> list[tuple[int, Place]]:
        return [(i, place) for i, place in enumerate(self.places) if place is not None]

    def _at(self, i: int) -> Place:
        place = self.places[i]
        assert place is not None
        return place

    def _is_due(self, place: Place) -> bool:
        done = place.used()
        return done < 1 and not place.told.behind and place.is_due(int(done * place.data["evaluations"]))

    def _examine(self, due: Sequence[int], least: int) -> None:
        """Evaluate trials until each has so many episodes; at their end, where that is above 0, see Driver.examine."""
        (found, took), lights = self._rounds(due, least), {i: self._light(self.state, i) for i in due}
        if not least:
            for i in due:
                self._at(i).journal.evaluated(lights[i], found[i], took)
            return
        for i in due:
            self._at(i).journal.keep_best(lights[i], found[i]["return"])
            self.state = self._exchange(self.state, jnp.int32(i), self._at(i).journal.best)
        anew, took_anew = self._rounds(due, least, first=OF_BEST)
        for i in due:
            self.state = self._exchange(self.state, jnp.int32(i), lights[i])
            self._at(i).journal.evaluated(lights[i], found[i], took + took_anew, anew[i])

    def _rounds(self, due: Sequence[int], least: int, first: int = 0) -> tuple[dict[int, dict[str, np.ndarray]], float]:
        """Return the metrics of an evaluation of each trial until it has so many episodes, and the seconds of each.

        Args:
            due: the places of the trials.
            least: the number of episodes that ended or were cut.
            first: the number of the first round.
        """
        now, rounds = time.perf_counter(), {i: list[dict[str, np.ndarray]]() for i in due}
        while left := [i for i in due if not rounds[i] or episodes_played(rounds[i], least) < least]:
            part = first + len(rounds[left[0]])
            keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(self.keys, part) if part else self.keys
            jobs = self._jobs([int(i in left) for i in range(len(self.places))], True)
            self.state, _, found = self._run(self.state, keys, *jobs)
            found = jax.device_get(found)
            for i in left:
                rounds[i].append({name: x[i] for name, x in found.items()})
        took = (time.perf_counter() - now) / max(len(due), 1)
        for i in due:
            self._at(i).progress.seconds += took
        return {i: several[0] if len(several) == 1 else over_rounds(several) for i, several in rounds.items()}, took

    def _advance(self) -> None:
        """A chunk of all; its seconds are theirs in equal shares."""
        now, counts = time.perf_counter(), [0] * len(self.places)
        for i, place in self._there():
            counts[i] = place.fitting(self.chunk)
        if self.vmapped:
            counts = [min(filter(None, counts))] * len(counts)
        self.state, metrics, _ = self._run(self.state, self.keys, *self._jobs(counts, False))
        metrics, found = jax.device_get((metrics, self.sentinel.look(self.state)))
        lost, took = self.sentinel.diverged(found), (time.perf_counter() - now) / len(self._there())
        for i, place in self._there():
            place.progress.seconds += took
            one = place.journal.count(counts[i], {name: x[i] for name, x in metrics.items()})
            place.journal.record(row_of(place.progress, one, "train", took))
            leaf = lost[i]
            if leaf is not None:
                problem = diverged(leaf, place.progress.iteration)
                self.store.end(place.trial.number, FAILED, message=problem)
                place.opened.close()
                self.places[i] = None
            elif place.checkpoints.due():
                self._save(i, place)

    def _save(self, i: int, place: Place) -> None:
        state, progress = tree.index(self.state, i), place.progress
        place.checkpoints.save(progress.iteration, state, place.journal.best, asdict(progress))

    def _close(self, i: int, place: Place) -> None:
        """Saves a trial, and ends it unless it was interrupted."""
        self._save(i, place)
        place.opened.close()
        place.told.end(stopped=place.used() < 1)
        self.places[i] = None

    def _refill(self, i: int, more: Callable[[], Trial | None]) -> None:
        """Gives a place to the next trial that can be trained, where there is one."""
        while self.places[i] is None and (trial := more()) is not None:
            state = self._open(i, trial)
            if state is not None:
                self.state = self._put(self.state, jnp.int32(i), state)


def _exchanged(state: State, i: jax.Array, light: State) -> State:
    """Return the states of several with another one, but for its replays, in place i."""
    several, replays = split(state)
    return join(tree.put(several, i, light), replays)


def check(definition: Definition, vmapped: int) -> None:
    """Raises OptionError where trials cannot be trained side by side."""
    if vmapped == 1:
        return
    data = definition.base
    workflow, _, budget = runs.build(definition.configuration(definition.space.defaults))
    require(not budget.is_timed, "vmapped", vmapped, "a budget in minutes is of one run alone")
    require(data["num_seeds"] == 1, "vmapped", vmapped, f"its trials have one seed, not {data['num_seeds']}")
    require(data.get("suite") is None, "vmapped", vmapped, "suites are of one run alone")
    require(data.get("eval_env") is None, "vmapped", vmapped, "an eval_env is of one run alone")
    require(not environments(workflow), "vmapped", vmapped, "environments on the host are of one run alone")
