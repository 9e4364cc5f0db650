"""Pools of host environments, which JAX states address by leases."""

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

OUTCOME_FIELDS = "reward", "terminated", "truncated", "left"  # `left` only in games
MAX_RESET_TRIES = 3  # with `restart`, each with another seed
SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that the seeds of all tries differ
MAX_FAILED_CALLS = 100  # calls in a row, with `restart`, in which every step fails
WAIT_SLACK = 1e-6  # relative; above the rounding error of a float32 fraction
NOTES = {  # messages, each printed once per pool
    CAST: "observations of the environment are cast to the dtype that its observation_space declares",
    UNUSED_MASK: f"infos of the environment contain an {MASK}, which is ignored; use env.action_mask=true to apply it",
}


class LeasePool:
    """Environments addressed by lease.

    Each call takes arrays with one row per environment; the active rows have distinct leases. A failure of an
    environment raises no exception: the lease of its row becomes negative and `fault` describes the first
    failure. With `restart`, a failed step is not a fault, since the environment starts a new episode, unless all steps
    of MAX_FAILED_CALLS calls in a row fail. After a
    fault no environment is touched any more.

    Args:
        places: Backend that runs the environments.
        layout: Layout of the backend's buffers.
        restart: Whether an environment that fails starts a new episode.
    """

    def __init__(self, places: HostBackend, layout: Layout, restart: bool) -> None:
        self.places, self.restart = places, restart
        self.obs, self.first = ([places.buffers[f"{x}{i}"] for i in range(len(layout.obs))] for x in ("obs", "first"))
        self.action = [places.buffers[f"action{i}"] for i in range(len(layout.action))]
        self.outcome = [places.buffers[name] for name in OUTCOME_FIELDS if name in places.buffers]
        self.steps = np.zeros(places.max_envs, np.uint32)
        self.begun = np.zeros(places.max_envs, np.uint32)  # value of `steps` at the start of the episode
        self.under_way = np.zeros(places.max_envs, bool)
        self.fault: HostFault | None = None
        self._place: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._told = False
        self._failed_calls = 0  # in a row
        self._notes = 0  # printed so far
        self._lock = threading.Lock()

    def reset(self, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, seeds: np.ndarray) -> list[np.ndarray]:
        """Start an episode in each active row, or release the row's lease.

        Args:
            acts: Active rows, bool [n].
            leaves: Active rows whose lease is released instead, bool [n].
            lease: Lease of each row, int32 [n]. A row without a valid lease gets a new one.
            seeds: Seeds of the episodes, uint64 [n].

        Returns:
            Leases [n] (0 if released, negative if failed), step counts [n], and the observations, a list of
            arrays.
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
        """Start an episode in each of the rows, and write the results into lease, steps and obs."""
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
        self.under_way[list(row_of)] = False  # steps of an earlier lease or of an abandoned episode
        failed = dict.fromkeys(row_of, "")
        for i in range(MAX_RESET_TRIES if self.restart else 1):
            todo = list(failed)
            failed = self.places.reset(todo, [(int(seeds[row_of[place]]) + i * SEED_STEP) % 2**63 for place in todo])
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
        """Take one step in each active row.

        A step that is not the next one of its lease is refused, which is a fault.

        Args:
            acts: Active rows, bool [n].
            lease: Lease of each row, int32 [n].
            steps: Step count of each lease, as the last call returned it, uint32 [n].
            *action: Leaves of the actions, shape [n, ...].

        Returns:
            Leases [n] (negative if the episode ended or failed), step counts [n], observations, rewards,
            terminated [n], truncated [n], and in games whether and why each agent has left.
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
        """Take a step as `step` does, but return once a fraction of the active rows has answered.

        A row whose last step is pending does not send another step. A step that ends an episode starts the
        next one if asked.

        Returns:
            Leases [n], step counts [n], observations, first observations of new episodes, the outcome as in
            `step`, whether a new episode has started [n], and whether the step is still pending [n].
        """
        with self._lock:
            answer = HostResponse.create_empty(lease, steps, self.obs, self.outcome)
            rows, places = self._select_valid_rows(answer, np.flatnonzero(acts), asked.pending)
            for on in (True, False):
                new = ~self.under_way[places] & (asked.autoreset[rows] == on)
                seeds = asked.seeds[rows[new]].tolist() if on else ()
                self.send(places[new], [part[rows[new]] for part in action], seeds)
            count = count_awaited(asked.wait_fraction, len(rows))
            self._write_autoresets(*self.recv(rows, places, count, answer), answer)
            answer.pending[rows] = self.under_way[places]
            said = *answer.obs, *answer.reset_obs, *answer.outcome
            return [answer.lease, answer.steps, *said, answer.has_reset, answer.pending]

    def send(self, places: np.ndarray, action: list[np.ndarray], seeds: Sequence[int] = ()) -> None:
        """Start a step in each place; with seeds, a step that ends an episode also starts the next one."""
        for board, part in zip(self.action, action, strict=True):
            board[places] = part
        self.steps[places] += 1
        self.under_way[places] = True
        self.places.send(places.tolist(), seeds)

    def recv(
        self, rows: np.ndarray, places: np.ndarray, count: int, answer: HostResponse
    ) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        """Wait for `count` places and write their answers into their rows; the other rows keep their lease.

        Returns:
            The rows and the places that have answered, and the error messages of places that could not start
            the next episode.
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
        if len(places):
            self._failed_calls = self._failed_calls + 1 if len(failed) == len(places) else 0
        if failed:
            row_of = dict(zip(places.tolist(), rows.tolist(), strict=True))
            self._report_faults({place: (row_of[place], error) for place, error in failed.items()}, STEP)
            there = np.array([place not in failed for place in places.tolist()])
            answer.clear_rows(rows[~there])
            rows, places = rows[there], places[there]
            late = {place: error for place, error in late.items() if place not in failed}
        answer.lease[rows[~answer.end_mask[rows]]] *= -1
        return rows, places, late

    def _write_autoresets(
        self, rows: np.ndarray, places: np.ndarray, failed: dict[int, str], answer: HostResponse
    ) -> None:
        """Write the episodes that steps have started into the answer.

        With `restart`, a failed start is no fault yet: the caller resets the environment once more.
        """
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
        """Return the rows whose step is the next one of their lease, and their places; the other rows are faults.

        The leases of all given rows become negative in the answer, which marks them as failed until they have
        answered. After a fault no row is valid.
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
        if len(set(found)) < len(found):  # if two rows have the same lease, the first row gets it
            right[np.setdiff1d(np.arange(len(found)), np.unique(places, return_index=True)[1])] = False
        for i in np.flatnonzero(~right).tolist():
            why = f"{STEP}: rejected, step {steps[i]} of lease {lease[i]} is not the next step of this lease"
            self.record_fault(HostFault(int(rows[i]), None, int(steps[i]), why))
        return rows[right], places[right]

    def _read_outputs(
        self, places: list[int], failed: dict[int, str], stage: str, out: list[np.ndarray], rows: Any, boards: list
    ) -> dict[int, str]:
        """Copy the outputs of places from the buffers into rows of `out`; close environments with non-finite output.

        Returns:
            Error messages of the environments with NaN or infinite output, by place.
        """
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
        """Record the first fault; with `restart`, only print the first failed step, since a new episode starts.

        A failed reset is a fault in either case, because it has been retried by then, and so is a failed step
        after MAX_FAILED_CALLS calls without any other.
        """
        for place, (row, error) in failed.items():
            done = 0 if stage == RESET else int(self.steps[place] - self.begun[place]) - 1
            fault = HostFault(row, self.places.worker_index(place), done, error)
            if stage == RESET or not self.restart or self._failed_calls == MAX_FAILED_CALLS:
                self.record_fault(fault)
            elif not self._told:
                self._told = True
                print(
                    f"an environment was restarted (later restarts are not reported): {fault}",
                    file=sys.stderr,
                    flush=True,
                )

    def _tell_notes(self, places: list[int]) -> None:
        """Print what environments have noted, each kind of note once per pool."""
        new = int(np.bitwise_or.reduce(self.places.buffers["notes"][places])) & ~self._notes
        self._notes |= new
        for note, what in NOTES.items():
            if new & note:
                print(what, file=sys.stderr, flush=True)

    def record_fault(self, fault: HostFault) -> None:
        """Record a fault, unless there is an earlier one; from then on no environment is touched."""
        self.fault = self.fault or fault

    def _allocate_lease(self) -> int:
        """Return a new lease of a free place, or 0 if all places are taken."""
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
        """Release the leases after `oldest` up to `newest` that are not in `held`."""
        with self._lock:
            self._release_leases([lease for lease in self._place if oldest < lease <= newest and lease not in held])

    @property
    def active_leases(self) -> tuple[int, ...]:
        """Return the leases that have not been released."""
        return tuple(self._place)

    def close(self) -> None:
        """Close all environments."""
        self.places.close()


def count_awaited(fraction: float, n: int) -> int:
    """Return the number of n rows to wait for, given a fraction that was rounded to float32."""
    return ceil(fraction * n * (1 - WAIT_SLACK))
