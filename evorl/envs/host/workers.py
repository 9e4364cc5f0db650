"""Environments in worker processes, several in each."""

import contextlib
import dataclasses
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evorl.envs.host import worker
from evorl.envs.host.places import most_places
from evorl.envs.host.played import DONE, Layout, memory
from evorl.envs.host.worker import ANSWERED, ASKED, CLOSE, COUNTS, HEAD, READY, RESET, STEP, STEP_ON, WIDTH

STARTING = 60.0  # seconds that a process may take to start, besides what its environments take
ENDING = 2.0


class Process:
    """A worker, the process group that it leads, and the pipes to it."""

    def __init__(self, number: int, settings: dict, recipe: bytes, board: int, signs: int) -> None:
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()
        life, self.life = os.pipe()
        given = commands, replies, life, board, signs
        self.popen = subprocess.Popen(
            [sys.executable, str(Path(worker.__file__)), *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's signals are for the process that it serves
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
        )
        for file in given[:3]:
            os.close(file)
        said = json.dumps(settings | {"worker": number}).encode()
        for part in (said, recipe):
            self.send(struct.pack("<I", len(part)) + part)

    def send(self, data: bytes) -> None:
        """Writes to it; where it has gone its replies end, which is seen then."""
        with contextlib.suppress(BrokenPipeError):
            worker.write(self.commands, data)

    def receive(self) -> dict[int, str]:
        """What went wrong in what it was asked; raises EOFError where it has gone."""
        (size,) = struct.unpack("<I", worker.read(self.replies, 4))
        failed = json.loads(worker.read(self.replies, size)) if size else {}
        return {int(place): error for place, error in failed.items()}

    def end(self, patience: float = 0.0) -> str:
        """End a worker, and whatever its environments have started.

        Args:
            patience: seconds in which the worker may end by itself.

        Returns:
            How the worker ended, for an error message.
        """
        os.close(self.commands)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS, where all have ended
            os.killpg(self.popen.pid, signal.SIGKILL)
        code = self.popen.wait()
        os.close(self.replies)
        os.close(self.life)
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class Workers:
    """Environments in processes, place p in process p modulo their number. None is waited for before another.

    A process does what it is asked one after the other. Steps are asked of all its places at once, or, where they are
    `apart`, of each on its own, so that one is known to be done while the next is under way.
    """

    def __init__(self, count: int, recipe: bytes, layout: Layout, timeout_seconds: float, apart: bool = False) -> None:
        self.count, self.timeout_seconds, self.apart, self._recipe = count, timeout_seconds, apart, recipe
        self.most = most_places(layout)
        self._files = memory(layout.nbytes(self.most)), memory(count * WIDTH * 4)
        self.board = layout.board(self.most, self._files[0])
        self._signs = np.frombuffer(mmap.mmap(self._files[1], 0), np.uint32).reshape(count, WIDTH)
        plain = dataclasses.asdict(layout)
        self._settings = {"path": sys.path, "layout": plain, "places": self.most}
        self._processes: dict[int, Process] = {}
        self._asked: dict[int, deque[list[int]]] = {}  # of each process, the places of all that it has not answered
        self._answered = [0] * count  # how often each has
        self._heard = [(0.0, 0)] * count  # when each did anything last, and how far it was with what it does now
        self._under_way = np.zeros(self.most, bool)
        self._wrong: dict[int, str] = {}  # by place, until it is received

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        self.recv(places, len(places))  # what they were asked for before, if anything
        for number in {place % self.count for place in places} - set(self._processes):
            self._signs[number], self._answered[number], self._asked[number] = 0, 0, deque()
            self._processes[number] = Process(number, self._settings, self._recipe, *self._files)
        self._ask(RESET, places, seeds)
        return self.recv(places, len(places))[1]

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        self._ask(STEP_ON if seeds else STEP, places, seeds, self.apart)

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        these = np.array(places, int)
        numbers = set((these[self._under_way[these]] % self.count).tolist())
        looking = time.perf_counter() + worker.SPIN
        while True:
            for number in numbers:
                while self._has_answered(number):
                    self._hear(number)
                self._end_if_silent(number)
            done = ~self._under_way[these]
            if np.count_nonzero(done) >= count:
                wrong = [place for place in places if place in self._wrong] if self._wrong else []
                return done, {place: self._wrong.pop(place) for place in wrong}
            if time.perf_counter() >= looking:
                self._sleep([number for number in numbers if self._asked.get(number)])

    def worker(self, place: int) -> int:
        return place % self.count

    def close(self, places: Sequence[int] | None = None) -> None:
        if places is not None:
            self.recv(places, len(places))
            self._ask(CLOSE, places)
            self.recv(places, len(places))
            return
        while self._processes:
            self._processes.popitem()[1].end(ENDING)
        for file in self._files:
            os.close(file)

    def _ask(self, kind: bytes, places: Sequence[int], seeds: Sequence[int] = (), apart: bool = False) -> None:
        """Asks all workers at once, none of whom has been asked for these places before and has not answered."""
        of: dict[int, list[int]] = {}
        for i, place in enumerate(places):
            of.setdefault(place % self.count, []).append(i)
        self.board["status"][list(places)] = 0
        for number, its in of.items():
            here = [places[i] for i in its]
            if number not in self._processes:
                self._wrong |= dict.fromkeys(here, "its worker has ended")
                continue
            data, asked = b"", self._asked[number]
            for part in [[i] for i in its] if apart else [its]:
                data += HEAD.pack(kind, len(part)) + np.array([places[i] for i in part], np.int32).tobytes()
                data += np.array([seeds[i] for i in part if seeds], np.uint64).tobytes()
            if not asked:
                self._heard[number] = time.monotonic(), 0
            asked.extend([place] for place in here) if apart else asked.append(here)
            self._under_way[here] = True
            self._processes[number].send(data)
            self._signs[number, ASKED] = (self._answered[number] + len(asked)) % COUNTS

    def _has_answered(self, number: int) -> bool:
        """Whether a worker's signs say so, which come after what it says."""
        if not self._asked.get(number):
            return False
        return 0 < (int(self._signs[number, ANSWERED]) - self._answered[number]) % COUNTS < COUNTS // 2

    def _hear(self, number: int) -> None:
        """Takes in what a worker says of the first thing that it was asked."""
        try:
            failed = self._processes[number].receive()
        except EOFError:
            self._ended(number, f"worker {number} has ended {{}}")
            return
        self._under_way[self._asked[number].popleft()] = False
        self._wrong |= failed
        self._answered[number] += 1
        self._heard[number] = time.monotonic(), 0

    def _sleep(self, numbers: list[int]) -> None:
        """Waits until one of these workers says anything, or has not for too long."""
        poll, of = select.poll(), {self._processes[number].replies: number for number in numbers}
        for file in of:
            poll.register(file, select.POLLIN)
        left = min(self._heard[number][0] + self._patience(number) for number in numbers) - time.monotonic()
        for file, _ in poll.poll(max(left, 0) * 1000 + 1):
            self._hear(of[file])

    def _end_if_silent(self, number: int) -> None:
        """Ends a worker that has been asked for something and has done nothing of it for too long."""
        asked, now, (heard, before) = self._asked.get(number), time.monotonic(), self._heard[number]
        if not asked or now < heard + self._patience(number):
            return
        done = int(np.count_nonzero(self.board["status"][asked[0]]))
        self._heard[number] = now, done
        if done <= before:
            self._ended(number, f"no answer for {self.timeout_seconds:g} s")

    def _patience(self, number: int) -> float:
        return self.timeout_seconds + (0 if self._signs[number, READY] else STARTING)

    def _ended(self, number: int, why: str) -> None:
        """Ends a worker; of the places that it was asked for those went wrong that it had not done."""
        why = why.format(self._processes.pop(number).end())
        now, *later = self._asked.pop(number)
        status = self.board["status"][now].tolist()
        undone = [place for place, done in zip(now, status, strict=True) if done != DONE]
        self._wrong |= dict.fromkeys([*undone, *(place for its in later for place in its)], why)
        self._under_way[[*now, *(place for its in later for place in its)]] = False
