"""What drives a training: the state on the device, and what is in flight there."""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.envs.host import pools
from evorl.errors import DivergedError, HostError, OptionError, require
from evorl.metrics import episodes_played, over_rounds
from evorl.replay import join, split
from evorl.training.callbacks import Callback
from evorl.training.devices import compiler_options
from evorl.training.hosts import Hosts
from evorl.training.journal import Journal
from evorl.training.nans import Sentinel, diverged, first_nan
from evorl.training.plan import indexing, reading, require_memory
from evorl.training.profile import Profile
from evorl.training.program import RUNS_ONCE, Program, Traced, job
from evorl.training.progress import Mark, Most, Progress
from evorl.training.records.checkpoint import Checkpoints, check_fit, leaf_shapes
from evorl.training.records.rows import per_seed, row_of
from evorl.training.terms import InFlight, Terms
from evorl.types import Hyperparams, Refuses, State
from evorl.vector_env import hosts
from evorl.workflows.base import most_steps

LAST_EPISODES = 128  # of the evaluation at the end, in as many rounds as that takes
OF_BEST = 2**20  # the first round of the evaluation of the best policies, so that its episodes are fresh


class Rounds(NamedTuple):
    """An evaluation in rounds."""

    evaluated: State  # without replays
    metrics: dict[str, np.ndarray]
    seconds: float


class Driver:
    """The state on the device, what is in flight there, and the journal of what has come back of it."""

    def __init__(
        self,
        program: Program,
        hyperparams: Hyperparams,
        terms: Terms,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        init_from: State = None,
    ) -> None:
        self.program, self.terms, self.checkpoints = program, terms, checkpoints
        self.budget, self.keys = terms.budget, (keys := program.keys)
        self.most = Most(*most_steps(program.workflow))
        self.journal = Journal(program.seeds, terms.budget, callbacks, terms.keep_rows)
        self.paces: deque[float] = deque(maxlen=3)  # seconds of an iteration of the last chunks
        self.snapshot = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        self.journal.stage("tracing")
        with indexing(), reading("hyperparams"):
            traced = program.traced(hyperparams)
        self.hosts = Hosts(program.workflow, traced.init.out_info, terms.exam)
        why = "cannot step the environments on the host once more"
        require(not (self.hosts.there and terms.debug_nans), "debug_nans", True, why)
        self.state = self._begin(traced, hyperparams, init_from)
        if (why := self._refusal()) is not None:
            raise OptionError(why)
        # It closes over keys, not self: a cycle would keep the state and its programs until Python collects garbage.
        self._new_state = lambda: traced.init.lower().compile(RUNS_ONCE)(keys, hyperparams)
        self.sentinel = Sentinel(program, self.state, [x is not None for x in self.progress.diverged])
        self.journal.stage("compiling")
        self.run = traced.run.compile(compiler_options())
        self.measure = lambda state: {}
        if terms.measure is not None:
            self.measure = program.measuring(terms.measure, split(self.state)[0], compiler_options())
        self.exam: Callable[..., Any] | None = None
        if terms.exam is not None:
            self.exam = program.examining(terms.exam, split(self.state)[0], compiler_options())
        self.journal.stage("training")
        self.arrived = time.perf_counter()
        self.started = terms.started - self.progress.seconds
        self.progress.compile_seconds += self.arrived - terms.started
        self.idle_since: float | None = self.arrived
        self.first = self.dispatched = self.progress.iteration
        self.in_flight: deque[InFlight] = deque()
        self.warned = False  # of rewards and observations that are not finite

    def _begin(self, traced: Traced, hyperparams: Hyperparams, init_from: State) -> State:
        """The state to go on from: that of the newest checkpoint, or a new one, with the weights of init_from."""
        shapes, checkpoints = traced.init.out_info, self.checkpoints
        if checkpoints is not None and checkpoints.latest is not None:
            state, best, saved = checkpoints.restore(shapes)
            state = jax.device_put(hosts.without(state), traced.places)
            self.journal.begin(best, Progress.of(saved, len(self.program.seeds)))
        else:
            require_memory(shapes, len(self.program.seeds))
            if checkpoints is not None:
                checkpoints.begin(shapes)
            state = traced.init.lower().compile(RUNS_ONCE)(self.keys, hyperparams)
            if init_from is not None:
                check_fit("what init_from gives", leaf_shapes(init_from), split(shapes)[0])
                inherit = jax.jit(self.program.inherit, donate_argnums=0, out_shardings=traced.places)
                state = inherit(state, init_from)
            self.journal.begin(self.snapshot(split(state)[0]))
        if checkpoints is not None:
            self.journal.resume()
        return state

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self.journal.progress

    def used(self) -> float:
        """The part of the budget that is used without the last chunk; with it where that may be the last of all.

        So it depends on the chunks alone, and not on which of them have come back, or on where a run was resumed.
        """
        return self.budget.used(self._known())

    def _known(self) -> Mark:
        """Return the mark without the last chunk; with it, which is waited for, where that may be the last of all."""
        before, done = self._marks
        if not self.budget.may_end(before, done, self.dispatched, self.most):
            return done
        self.receive()
        return self.progress.mark

    @property
    def _marks(self) -> list[Mark]:
        """After the last chunk but two and but one."""
        is_in_flight = any(sent.count for sent in self.in_flight)
        return [Mark(*mark) for mark in self.progress.marks[-2 - (not is_in_flight) :][:2]]

    def fitting(self, count: int) -> int:
        """How many of count iterations may begin: none after one that may use it up, and none that ends late."""
        count = int(min(count, self.budget.room(self._known(), self.dispatched, self.most)))
        if not self.budget.is_timed or not count:
            return count
        self.receive(all_but=0 if self._left() < 3 * count * self.progress.pace else 1)
        if not self.progress.pace:
            return 1
        pending = sum(sent.count * self.progress.pace or self.journal.evaluation_took for sent in self.in_flight)
        count = int(min(count, max((self._left() - pending) / self.progress.pace, 0)))
        self.journal.full = not count
        return count

    def _left(self) -> float:
        """Seconds of the budget that are left."""
        return 60 * self.budget.minutes - (time.perf_counter() - self.started - self.progress.compile_seconds)

    def evaluation_is_due(self, point: int) -> bool:
        """Whether this point of the schedule was not evaluated yet; it waits while evaluations take too much."""
        done = self.progress
        if done.first is None:
            room = True
        elif self.budget.is_timed:
            cost, spent = self.journal.evaluation_took, done.evaluation_seconds
            room = spent + cost <= self.terms.share * (done.seconds - done.compile_seconds + cost)
        else:
            room = done.has_room(self._marks[1].env_steps * len(self.program.seeds), self.terms.share)
        if point <= done.evaluated or not room:
            return False
        done.evaluated = point
        return True

    def dispatch(self, count: int, evaluating: bool, part: int = 0, kept: State = None) -> None:
        """Hand the device count steps, or a round of an evaluation, without waiting for what it has in hand.

        Args:
            count: of iterations, 1 for an evaluation.
            evaluating: whether it is one.
            part: the number of its round.
            kept: what a failure of an environment on the host goes back to, without replays; by default the state.
        """
        if self.idle_since is not None:
            self.arrived = time.perf_counter()
            self.progress.idle_seconds += self.arrived - self.idle_since
            self.idle_since = None
        before = self.snapshot(self.state) if self.terms.debug_nans and not evaluating else None
        newest = pools.newest()
        if self.hosts.there and kept is None:
            kept = self.snapshot(split(self.state)[0])
        keys = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))(self.keys, part) if part else self.keys
        todo = job(self.dispatched, count, evaluating)
        metrics: Any = {}
        if evaluating and self.exam is not None:
            evaluation = self.exam(split(self.state)[0], keys, todo[0])
        else:
            self.state, metrics, evaluation = self.run(self.state, keys, *todo)
        host = {"kept": kept, "look": self.hosts.look(newest, (evaluation, self.state))}
        if evaluating:
            light = split(self.state)[0]
            measured = {} if part else self.measure(light)  # of a state once, however many rounds it is evaluated
            self.in_flight.append(InFlight(0, evaluation, self.snapshot(light), measured, **host))
        else:
            found = self.sentinel.look(self.state)
            self.in_flight.append(InFlight(count, metrics, found=found, before=before, **host))
            self.dispatched += count

    def receive(self, all_but: int = 0) -> None:
        """Waits for what is in flight, but for the last `all_but`, and hands it to the callbacks row by row."""
        while len(self.in_flight) > all_but:
            sent, metrics, found, duration = self._wait()
            if sent.evaluated is not None:
                self.journal.evaluated(sent.evaluated, metrics | sent.measured, duration)
                continue
            self.paces.append(duration / sent.count)
            self.progress.pace = max(self.paces)
            metrics = self.journal.count(sent.count, metrics)
            problem = self._mark(sent, found) or self._cut(metrics)
            self.journal.record(row_of(self.progress, metrics, "train", duration))
            if problem is not None:
                why = self._refusal()
                raise DivergedError(problem if why is None else f"{problem}; {why}")

    def _refusal(self) -> str | None:
        """Why the workflow cannot go on from the state of one of its runs, where it says so."""
        workflow, runs = self.program.workflow, len(self.program.seeds)
        if not isinstance(workflow, Refuses):
            return None
        states = [self.state] if runs == 1 else [tree.index(self.state, i) for i in range(runs)]
        return next((why for one in states if (why := workflow.refusal(one)) is not None), None)

    def examine(self, stop: Callable[[], bool]) -> None:
        """Make the last evaluation, and evaluate the best policies anew, whose return was chosen for being the highest.

        Each has rounds until they have 128 episodes; both together are held to their share of the minutes. A stop
        discards its rounds, so that a resumed run makes the whole evaluation and its row is the same.
        """
        longest = 60 * self.terms.share * self.budget.minutes
        last = self._rounds(stop, longest)
        if last is None:
            return
        self.journal.keep_best(last.evaluated, last.metrics["return"])
        light, replay = split(self.state)
        places = jax.tree.map(lambda x: x.sharding, light)
        kept, best = (self.snapshot(x) for x in (light, hosts.without(self.journal.best)))  # which may be overwritten
        self.state = join(jax.device_put(best, places), replay)
        anew = self._rounds(stop, longest - last.seconds, OF_BEST, kept)
        self.state = join(jax.device_put(kept, places), split(self.state)[1])
        if anew is not None:
            self.journal.evaluated(last.evaluated, last.metrics, last.seconds + anew.seconds, anew.metrics)

    def _rounds(self, stop: Callable[[], bool], longest: float, first: int = 0, kept: State = None) -> "Rounds | None":
        """Make rounds of an evaluation until 128 episodes have ended, or were cut; None where stopped.

        Args:
            stop: asked before each.
            longest: seconds that they may take, but for the first.
            first: the number of the first, from which its keys are.
            kept: see `dispatch`.
        """
        rounds: list[dict[str, np.ndarray]] = []
        measured: dict[str, np.ndarray] = {}
        seconds, evaluated = 0.0, None
        while not rounds or seconds * (1 + 1 / len(rounds)) <= longest:
            if stop():
                return None
            self.dispatch(1, evaluating=True, part=first + len(rounds), kept=kept)
            sent, metrics, _, duration = self._wait()
            rounds, seconds, evaluated = [*rounds, metrics], seconds + duration, sent.evaluated
            measured |= sent.measured
            if episodes_played(rounds, LAST_EPISODES).min() >= LAST_EPISODES:
                break
        return Rounds(evaluated, over_rounds(rounds) | measured, seconds)

    def _wait(self) -> "tuple[InFlight, dict[str, np.ndarray], Any, float]":
        """What was sent first, its metrics, what the sentinel found, and the seconds that it took."""
        sent = self.in_flight.popleft()
        metrics, found, measured, look = jax.device_get((sent.metrics, sent.found, sent.measured, sent.look))
        now = time.perf_counter()
        duration, self.arrived, self.progress.seconds = now - self.arrived, now, now - self.started
        if not self.in_flight:
            self.idle_since = now
        if not self.hosts.settled(look):
            self._back_to(sent.kept)
        return replace(sent, measured=measured), metrics, found, duration

    def _back_to(self, kept: State) -> NoReturn:
        """Saves the state as it was before an environment on the host has failed, and raises HostError.

        The replay keeps what was answered until then, unless nothing was learned before.
        """
        self.in_flight.clear()
        later = self.state if self.progress.iteration else self._new_state()
        self.state, self.dispatched = join(kept, split(later)[1]), self.progress.iteration
        if self.checkpoints is not None:
            self.save()
        fault = pools.fault()
        self.hosts.close()
        raise HostError(f"an environment has failed: {fault}")

    def _mark(self, sent: "InFlight", found: np.ndarray) -> str | None:
        """Marks the runs that have diverged in a chunk; says so where none is left, or where it is to be found out."""
        iteration, lost = self.progress.iteration, self.progress.diverged
        leaves = enumerate(self.sentinel.diverged(found))
        new = {seed: leaf for seed, leaf in leaves if leaf is not None and lost[seed] is None}
        for seed in new:
            lost[seed] = iteration
        if not new or (None in lost and not self.terms.debug_nans):
            return None
        first, where = next(iter(new.items()))
        problem = diverged(where, iteration)
        if len(self.program.seeds) > 1:
            problem = f"seed {self.program.seeds[first]} {problem}"
        if sent.before is not None:
            problem += f"; {first_nan(self.program, sent.before, first, iteration - sent.count, sent.count)}"
        return problem

    def _cut(self, metrics: dict[str, np.ndarray]) -> str | None:
        """Say once that steps were not finite, but of runs that have diverged; return why where no step is left."""
        if self.hosts.there or "bad_rewards" not in metrics:
            return None
        sound = np.array([iteration is None for iteration in self.progress.diverged])
        counts = ("env_steps", "restarts", "bad_rewards")
        steps, cut, of_reward = (int(np.dot(per_seed(metrics[name], len(sound)), sound)) for name in counts)
        if not cut:
            return None
        what = f"{of_reward} rewards and {cut - of_reward} observations were NaN or infinite"
        if not steps:
            return f"no step of the environments counts: {what}"
        if not self.warned:
            self.warned = True
            told = f"{what}; such steps are not learned from, and their episodes begin anew"
            print(told, file=sys.stderr, flush=True)
        return None

    def trace(self, profile: Profile) -> None:
        """One iteration, traced."""
        self.receive()
        if self.budget.room(self.progress.mark, self.dispatched, self.most) >= 1:
            with profile.tracing(self.run):
                self.dispatch(1, evaluating=False)
                self.receive()

    def save(self) -> None:
        """Saves the state as it is when nothing is in flight."""
        assert self.checkpoints is not None
        now = time.perf_counter()
        self.checkpoints.save(self.progress.iteration, self.state, self.journal.best, asdict(self.progress))
        self.progress.host_seconds += time.perf_counter() - now
