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
from evorl.metrics import over_rounds
from evorl.replay import split
from evorl.sweeps.definition import Definition
from evorl.sweeps.single import Told, opened, recording
from evorl.sweeps.store import Store
from evorl.sweeps.trials import FAILED, Trial
from evorl.training import runs
from evorl.training.devices import compiler_options
from evorl.training.driver import LAST_EPISODES
from evorl.training.hosts import environments
from evorl.training.journal import Journal
from evorl.training.nans import Sentinel
from evorl.training.program import RUNS_ONCE, Program
from evorl.training.progress import Progress
from evorl.training.records import files
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.rows import row_of
from evorl.types import Metrics, State


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
        budget, (before, done, now) = self.journal.budget, self.progress.marks
        return budget.used(now if budget.may_end(before, done, self.progress.iteration) else done)

    def is_due(self, point: int) -> bool:
        """Whether this point of its schedule is to be evaluated; see Driver.evaluation_is_due."""
        done = self.progress
        if not done.iteration or point <= done.evaluated or not done.has_room(done.marks[1].env_steps, self.share):
            return False
        done.evaluated = point
        return True


class SideBySide:
    """n trials that differ in hyperparameters and budgets alone, vmapped; each has the keys of a training of its own.

    They take chunks together. Each is evaluated, and ends, as its own budget says, alone: evaluations of the others
    would be for nothing.
    """

    def __init__(self, store: Store, definition: Definition, trials: Sequence[Trial]) -> None:
        self.store, self.definition = store, definition
        data = definition.configuration(trials[0].values)
        self.workflow, hyperparams, _ = runs.build(data)
        self.chunk = data["chunk"] or data["agent"].get("chunk", 1)
        self.program = Program(self.workflow, [data["seed"]] * len(trials), self.chunk, True)
        self.keys, self.mesh = self.program.keys, self.program.mesh
        with jax.set_mesh(self.mesh):
            self.shapes = jax.eval_shape(self.workflow.init, self.keys[0, 0], hyperparams)
            self._init = jax.jit(self.workflow.init).lower(self.keys[0, 0], hyperparams).compile(RUNS_ONCE)
            self._light = jax.jit(lambda state, i: tree.index(split(state)[0], i))
            self._put = jax.jit(tree.put, donate_argnums=0)
        self.places: list[Place | None] = [None] * len(trials)
        states = [self._open(i, trial) for i, trial in enumerate(trials)]
        whole = [state for state in states if state is not None]
        if not whole:
            return
        self.state = tree.stack([whole[0] if state is None else state for state in states])
        with jax.set_mesh(self.mesh):
            self._compile()

    def _compile(self) -> None:
        one = self.program.run_one

        def run(state: State, keys: jax.Array, first: jax.Array, count: jax.Array) -> tuple[State, Metrics]:
            return jax.vmap(lambda *each: one(*each, count, False)[:2])(state, keys, first)

        def evaluate(state: State, keys: jax.Array, first: jax.Array, i: jax.Array) -> Metrics:
            return one(tree.index(state, i), keys, first, jnp.int32(1), True)[2]

        first, count = jnp.zeros(len(self.places), jnp.uint32), jnp.int32(0)
        run_all = jax.jit(run, donate_argnums=0).lower(self.state, self.keys, first, count)
        self._run = run_all.compile(compiler_options())
        evaluates = jax.jit(evaluate).lower(self.state, self.keys[0], first[0], count)
        self._evaluate = evaluates.compile(compiler_options())
        self.sentinel = Sentinel(self.program, self.state, [place is None for place in self.places])

    def _open(self, i: int, trial: Trial) -> State | None:
        """The state of a trial that takes place i, from its checkpoint where it has one; None where it has failed."""
        with ExitStack() as stack:
            try:
                data, run_dir = opened(self.definition, trial, self.store.folder)
                _, hyperparams, budget = runs.build(data)
                require(not budget.is_timed, "vmapped", len(self.places), "minutes are of one run alone")
                told = Told(self.store, self.definition, trial.number)
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
            place = Place(trial, data, journal, told, checkpoints, stack.pop_all(), begun)
        done = place.progress  # which may have been given another budget
        done.evaluated = min(done.evaluated, int(budget.used(done.mark) * data["evaluations"]))
        self.places[i] = place
        return state

    def train(self, stop: Callable[[], bool], more: Callable[[], Trial | None]) -> None:
        """Trains them, and those that more gives once there is a place, until none is left or it is to stop."""
        while not stop() and any(self.places):
            for i, place in enumerate(self.places):
                if place is not None and self._has_ended(i, place):
                    self._close(i, place)
                    self._refill(i, more)
            if any(self.places):
                self._advance()
        for i, place in enumerate(self.places):
            if place is not None:
                self._close(i, place)

    def _has_ended(self, i: int, place: Place) -> bool:
        """Evaluates a trial where that is due; whether it has come to its end, or has been stopped."""
        done = place.used()
        if done < 1 and not place.told.behind and place.is_due(int(done * place.data["evaluations"])):
            self._examine(i, place, least=0)
        if done >= 1 and place.progress.iteration > place.begun:
            self._examine(i, place, least=LAST_EPISODES)
        return done >= 1 or place.told.behind

    def _examine(self, i: int, place: Place, least: int) -> None:
        """Evaluates a trial in rounds, until they have so many episodes."""
        now, rounds = time.perf_counter(), list[dict[str, np.ndarray]]()
        while not rounds or sum(int(one.get("episodes", least)) for one in rounds) < least:
            keys = self.keys[i]
            if rounds:
                keys = jax.vmap(jax.random.fold_in, (0, None))(keys, len(rounds))
            first = jnp.uint32(place.progress.iteration)
            rounds.append(jax.device_get(self._evaluate(self.state, keys, first, jnp.int32(i))))
        found = rounds[0] if len(rounds) == 1 else over_rounds(rounds)
        place.progress.seconds += time.perf_counter() - now
        place.journal.evaluated(self._light(self.state, i), found, time.perf_counter() - now)

    def _advance(self) -> None:
        """A chunk of all; its seconds are theirs in equal shares."""
        now, there = time.perf_counter(), [place for place in self.places if place is not None]
        left = [place.journal.budget.iterations - place.progress.iteration for place in there]
        count = int(min(self.chunk, *left))
        first = [0 if place is None else place.progress.iteration for place in self.places]
        firsts = jnp.asarray(first, jnp.uint32)
        self.state, metrics = self._run(self.state, self.keys, firsts, jnp.int32(count))
        metrics, found = jax.device_get((metrics, self.sentinel.look(self.state)))
        lost, took = self.sentinel.diverged(found), (time.perf_counter() - now) / len(there)
        for i, place in enumerate(self.places):
            if place is None:
                continue
            place.progress.seconds += took
            one = place.journal.count(count, {name: x[i] for name, x in metrics.items()})
            place.journal.record(row_of(place.progress, one, "train", took))
            if lost[i] is not None:
                problem = f"diverged: {lost[i]} is not finite after iteration {place.progress.iteration}"
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


def check(definition: Definition, vmapped: int) -> None:
    """Raises OptionError where trials cannot be trained side by side."""
    if vmapped == 1:
        return
    data = definition.base
    workflow, _, budget = runs.build(definition.configuration(definition.space.defaults))
    require(not budget.is_timed, "vmapped", vmapped, "a budget in minutes is of one run alone")
    require(data["num_seeds"] == 1, "vmapped", vmapped, f"its trials have one seed, not {data['num_seeds']}")
    require(data.get("suite") is None, "vmapped", vmapped, "suites are of one run alone")
    require(not environments(workflow), "vmapped", vmapped, "environments on the host are of one run alone")
