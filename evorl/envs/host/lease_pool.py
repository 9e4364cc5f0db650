"""The environments of this process that states have leases of."""

import sys
import threading
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import numpy as np

from evorl.envs.host.backends import HostBackend
from evorl.envs.host.leases import LEASE_COUNTER, HostFault
from evorl.envs.host.messages import BatchRequest, HostResponse
from evorl.envs.host.serial_envs import CAST, MASK, RESET, STEP, STEPPED, UNUSED_MASK, Layout

OUTCOME_FIELDS = "reward", "terminated", "truncated", "left"  # the last of games alone
MAX_RESET_TRIES = 3  # of a start, where an environment that has failed begins anew
NOTES = {  # what is told once of what environments have noted
    CAST: "observations of the environment are cast to the dtype that its observation_space declares",
    UNUSED_MASK: f"infos of the environment hold an {MASK}, which is not used; env.action_mask=true keeps to it",
}


class LeasePool:
    """Environments by lease. A call has rows, of which those that act are each of a lease of their own.

    Nothing that an environment does raises: its row has a negative lease then, and `fault` says what it was, or, where
    it may begin anew, nothing does. From a fault on no environment is touched.
    """

    def __init__(self, places: HostBackend, layout: Layout, restart: bool) -> None:
        self.places, self.restart = places, restart
        self.obs, self.first = ([places.buffers[f"{x}{i}"] for i in range(len(layout.obs))] for x in ("obs", "first"))
        self.action = [places.buffers[f"action{i}"] for i in range(len(layout.action))]
        self.outcome = [places.buffers[name] for name in OUTCOME_FIELDS if name in places.buffers]
        self.steps = np.zeros(places.max_envs, np.uint32)
        self.begun = np.zeros(places.max_envs, np.uint32)  # what steps were when the episode began
        self.under_way = np.zeros(places.max_envs, bool)
        self.fault: HostFault | None = None
        self._place: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._told = False
        self._notes = 0  # told so far
        self._lock = threading.Lock()

    def reset(self, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, seeds: np.ndarray) -> list[np.ndarray]:
        """Begins an episode in the rows that act, each of its lease or of a new one; or gives the leases back.

        Returns leases, counts and observations.
        """
        with self._lock:
            lease, steps = lease.copy(), np.zeros(len(lease), np.uint32)
            obs = [np.zeros((len(lease), *x.shape[1:]), x.dtype) for x in self.obs]
            going = np.flatnonzero(acts & leaves)
            self._release_leases(np.abs(lease[going]).tolist())
            lease[going] = 0
            rows = np.flatnonzero(acts & ~leaves)
            lease[rows] = -np.abs(lease[rows])
            if self.fault is None and len(rows):
                self._reset_rows(rows, lease, steps, obs, seeds)
            return [lease, steps, *obs]

    def _reset_rows(
        self, rows: np.ndarray, lease: np.ndarray, steps: np.ndarray, obs: list[np.ndarray], seeds: np.ndarray
    ) -> None:
        """What reset does in rows, written into its results."""
        row_of: dict[int, int] = {}  # by place
        for row in rows.tolist():
            one = -int(lease[row])
            if one not in self._place or self._place[one] in row_of:
                one = self._allocate_lease()
                if not one:
                    self.record_fault(
                        HostFault(row, None, 0, f"{RESET}: more than {self.places.max_envs} environments at once")
                    )
                    return
            lease[row] = -one
            row_of[self._place[one]] = row
        self.under_way[list(row_of)] = False  # of an earlier lease, or an episode that is given up
        failed = dict.fromkeys(row_of, "")
        for _ in range(MAX_RESET_TRIES if self.restart else 1):
            todo = list(failed)
            failed = self.places.reset(todo, [int(seeds[row_of[place]]) for place in todo])
            failed |= self._read_outputs(todo, failed, RESET, obs, [row_of[place] for place in todo], self.obs)
            if not failed:
                break
        self._tell_notes(list(row_of))
        there = [place for place in row_of if place not in failed]
        self.steps[there] += 1
        self.begun[there] = self.steps[there]
        rows = np.array([row_of[place] for place in there], int)
        lease[rows], steps[rows] = -lease[rows], self.steps[there]
        self._report_faults({place: (row_of[place], error) for place, error in failed.items()}, RESET)

    def step(self, acts: np.ndarray, lease: np.ndarray, steps: np.ndarray, *action: np.ndarray) -> list[np.ndarray]:
        """Takes a step in the rows that act; refused where it is not the next one of its lease.

        Returns leases, counts, observations, rewards, whether terminated, whether truncated, and of a game what has
        become of each agent.
        """
        with self._lock:
            answer = HostResponse.create_empty(lease, steps, self.obs, self.outcome)
            rows, places = self._select_valid_rows(answer, np.flatnonzero(acts))
            self.send(places, [part[rows] for part in action])
            self.recv(rows, places, len(rows), answer)
            return [answer.lease, answer.steps, *answer.obs, *answer.outcome]

    def step_batch(
        self, asked: BatchRequest, acts: np.ndarray, lease: np.ndarray, steps: np.ndarray, *action: np.ndarray
    ) -> list[np.ndarray]:
        """What step does, but rows that wait have sent theirs before, and it returns once a share of all is done.

        Returns leases, counts, observations, those with which an episode begins, the outcome as of step, whether one
        has begun, and whether the step is still under way.
        """
        with self._lock:
            answer = HostResponse.create_empty(lease, steps, self.obs, self.outcome)
            rows, places = self._select_valid_rows(answer, np.flatnonzero(acts), asked.pending)
            for on in (True, False):
                new = ~self.under_way[places] & (asked.autoreset[rows] == on)
                seeds = asked.seeds[rows[new]].tolist() if on else ()
                self.send(places[new], [part[rows[new]] for part in action], seeds)
            self._write_autoresets(*self.recv(rows, places, ceil(asked.wait_fraction * len(rows)), answer), answer)
            answer.pending[rows] = self.under_way[places]
            said = *answer.obs, *answer.reset_obs, *answer.outcome
            return [answer.lease, answer.steps, *said, answer.has_reset, answer.pending]

    def send(self, places: np.ndarray, action: list[np.ndarray], seeds: Sequence[int] = ()) -> None:
        """Has steps taken in places; with seeds those that end an episode begin the next one."""
        for board, part in zip(self.action, action, strict=True):
            board[places] = part
        self.steps[places] += 1
        self.under_way[places] = True
        self.places.send(places.tolist(), seeds)

    def recv(
        self, rows: np.ndarray, places: np.ndarray, count: int, answer: HostResponse
    ) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        """Writes into rows what places answer, as soon as so many have; of the others the lease stays.

        Returns the rows and places that have answered, and of those that could not begin another episode why.
        """
        done, failed = self.places.recv(places.tolist(), count)
        answer.steps[rows] = self.steps[places]
        answer.lease[rows[~done]] *= -1
        rows, places = rows[done], places[done]
        self.under_way[places] = False
        status = self.places.buffers["status"]
        late = {place: failed.pop(place) for place in list(failed) if status[place] == STEPPED}
        out = [*answer.obs, *answer.outcome]
        failed |= self._read_outputs(places.tolist(), failed, STEP, out, rows, [*self.obs, *self.outcome])
        if failed:
            row_of = dict(zip(places.tolist(), rows.tolist(), strict=True))
            self._report_faults({place: (row_of[place], error) for place, error in failed.items()}, STEP)
            there = np.array([place not in failed for place in places.tolist()])
            answer.clear_rows(rows[~there])
            rows, places = rows[there], places[there]
        answer.lease[rows[~answer.end_mask[rows]]] *= -1
        return rows, places, late

    def _write_autoresets(
        self, rows: np.ndarray, places: np.ndarray, failed: dict[int, str], answer: HostResponse
    ) -> None:
        """Writes into rows what episodes have begun; where one has not, it may be tried once more."""
        row_of = dict(zip(places.tolist(), rows.tolist(), strict=True))
        there = places[self.places.buffers["begun"][places]].tolist()
        rows = np.array([row_of[place] for place in there], int)
        failed |= self._read_outputs(there, failed, RESET, answer.reset_obs, rows, self.first)
        there = np.array([place for place in there if place not in failed], int)
        rows = np.array([row_of[place] for place in there.tolist()], int)
        self.steps[there] += 1
        self.begun[there] = self.steps[there]
        answer.has_reset[rows], answer.steps[rows] = True, self.steps[there]
        for array in answer.reset_obs:
            array[[row_of[place] for place in failed]] = 0
        if not self.restart:
            self._report_faults({place: (row_of[place], error) for place, error in failed.items()}, RESET)

    def _select_valid_rows(
        self, answer: HostResponse, rows: np.ndarray, waits: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of rows those whose step is the next one of their lease, and their places; the others are faults.

        In the answer the leases of all of them are as of what has failed. After a fault it is none of them.
        """
        lease, steps = answer.lease[rows], answer.steps[rows]
        answer.lease[rows] = -np.abs(lease)
        if self.fault is not None:
            return rows[:0], rows[:0]
        place = self._place
        found = [place.get(one, -1) for one in lease.tolist()]
        places = np.array(found, int)
        asked_before = False if waits is None else waits[rows]
        right = (places >= 0) & (self.steps[places] == steps) & (self.under_way[places] == asked_before)
        if len(set(found)) < len(found):  # of a lease in two rows the first has it
            right[np.setdiff1d(np.arange(len(found)), np.unique(places, return_index=True)[1])] = False
        for i in np.flatnonzero(~right).tolist():
            why = f"{STEP}: refused, step {steps[i]} of lease {lease[i]} is not its next one"
            self.record_fault(HostFault(int(rows[i]), None, int(steps[i]), why))
        return rows[right], places[right]

    def _read_outputs(
        self, places: list[int], failed: dict[int, str], stage: str, out: list[np.ndarray], rows: Any, boards: list
    ) -> dict[int, str]:
        """Takes what places say from the board into rows of arrays; says which of it is not finite, and ends these."""
        found: dict[int, str] = {}
        for array, board in zip(out, boards, strict=True):
            array[rows] = seen = board[places]
            if array.dtype.kind == "f" and not np.isfinite(seen).all():
                what = "reward" if board is self.outcome[0] else "observation"
                bad = [(place, row) for place, row in zip(places, seen, strict=True) if not np.isfinite(row).all()]
                how = {place: "NaN" if np.isnan(row).any() else "infinite" for place, row in bad if place not in failed}
                found |= {place: f"{stage}: the {what} is {how[place]}" for place in how}
        if found:
            self.places.close(list(found))
        return found

    def _report_faults(self, failed: dict[int, tuple[int, str]], stage: str) -> None:
        """Keeps the first fault, unless environments may begin anew; a start has been tried again by then."""
        for place, (row, error) in failed.items():
            done = 0 if stage == RESET else int(self.steps[place] - self.begun[place]) - 1
            fault = HostFault(row, self.places.worker_index(place), done, error)
            if stage == RESET or not self.restart:
                self.record_fault(fault)
            elif not self._told:
                self._told = True
                print(f"an environment begins anew, of others nothing is said: {fault}", file=sys.stderr, flush=True)

    def _tell_notes(self, places: list[int]) -> None:
        """Print, once for all, what environments have noted of themselves."""
        new = int(np.bitwise_or.reduce(self.places.buffers["notes"][places])) & ~self._notes
        self._notes |= new
        for note, what in NOTES.items():
            if new & note:
                print(what, file=sys.stderr, flush=True)

    def record_fault(self, fault: HostFault) -> None:
        """From now on nothing is touched, for this reason, or for an earlier one."""
        self.fault = self.fault or fault

    def _allocate_lease(self) -> int:
        """A new lease of a free place; 0 where there is none."""
        if not self._free and self._used == self.places.max_envs:
            return 0
        if not self._free:
            self._free.append(self._used)
            self._used += 1
        lease = LEASE_COUNTER.new_lease()
        self._place[lease] = self._free.pop()
        return lease

    def _release_leases(self, leases: Iterable[int]) -> None:
        places = [self._place.pop(lease) for lease in leases if lease in self._place]
        self._free = sorted([*self._free, *places], reverse=True) if places else self._free

    def release_unused(self, held: set[int], newest: int, oldest: int = 0) -> None:
        """Gives back what is leased and not held, of the leases after oldest up to newest."""
        with self._lock:
            self._release_leases([lease for lease in self._place if oldest < lease <= newest and lease not in held])

    @property
    def active_leases(self) -> tuple[int, ...]:
        """The leases that are not given back."""
        return tuple(self._place)

    def close(self) -> None:
        """Closes every environment."""
        self.places.close()
