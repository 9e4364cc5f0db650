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
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evorl.envs.host import worker
from evorl.envs.host.places import most_places
from evorl.envs.host.played import DONE, Layout, memory
from evorl.envs.host.worker import ANSWERED, ASKED, CLOSE, HEAD, READY, RESET, STEP, WIDTH

STARTING = 60.0  # seconds that a process may take to start, besides what its environments take
ENDING = 2.0


class Process:
    """A worker, and the pipes to it."""

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
        """Ends it, after so many seconds at the latest; returns how it ended."""
        os.close(self.commands)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        self.popen.kill()
        code = self.popen.wait()
        os.close(self.replies)
        os.close(self.life)
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class Workers:
    """Environments in processes, place p in process p modulo their number. None is waited for before another."""

    def __init__(self, count: int, recipe: bytes, layout: Layout, timeout_seconds: float) -> None:
        self.count, self.timeout_seconds, self._recipe = count, timeout_seconds, recipe
        self.most = most_places(layout)
        self._files = memory(layout.nbytes(self.most)), memory(count * WIDTH * 4)
        self.board = layout.board(self.most, self._files[0])
        self._signs = np.frombuffer(mmap.mmap(self._files[1], 0), np.uint32).reshape(count, WIDTH)
        plain = dataclasses.asdict(layout)
        self._settings = {"path": sys.path, "layout": plain, "places": self.most}
        self._processes: dict[int, Process] = {}

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        for number in {place % self.count for place in places} - set(self._processes):
            self._signs[number] = 0
            self._processes[number] = Process(number, self._settings, self._recipe, *self._files)
        return self._asked(RESET, places, dict(zip(places, seeds, strict=True)))

    def step(self, places: Sequence[int]) -> dict[int, str]:
        return self._asked(STEP, places)

    def worker(self, place: int) -> int:
        return place % self.count

    def close(self, places: Sequence[int] | None = None) -> None:
        if places is not None:
            self._asked(CLOSE, places)
            return
        while self._processes:
            self._processes.popitem()[1].end(ENDING)
        for file in self._files:
            os.close(file)

    def _asked(self, kind: bytes, places: Sequence[int], seeds: dict[int, int] | None = None) -> dict[int, str]:
        """Asks all workers at once; what went wrong, by place, of a worker that has ended what it was at first."""
        of: dict[int, list[int]] = {}
        for place in places:
            of.setdefault(place % self.count, []).append(place)
        self.board["status"][list(places)] = 0
        failed, asked = {}, {}
        for number, its in of.items():
            if number not in self._processes:
                failed |= dict.fromkeys(its, "its worker has ended")
                continue
            data = HEAD.pack(kind, len(its)) + np.array(its, np.int32).tobytes()
            if seeds is not None:
                data += np.array([seeds[place] for place in its], np.uint64).tobytes()
            self._processes[number].send(data)
            self._signs[number, ASKED] += 1
            asked[number] = its
        return failed | self._answers(asked)

    def _answers(self, asked: dict[int, list[int]]) -> dict[int, str]:
        """What went wrong, as the workers come to an end."""
        failed, poll = {}, select.poll()
        number_of = {self._processes[number].replies: number for number in asked}
        for file in number_of:
            poll.register(file, select.POLLIN)
        done, seen = dict.fromkeys(asked, 0), dict.fromkeys(asked, time.monotonic())
        looking = time.perf_counter() + worker.SPIN
        while asked:
            if time.perf_counter() < looking:
                ready = [n for n in asked if self._signs[n, ANSWERED] == self._signs[n, ASKED]]
            else:
                left = min(seen[n] + self._patience(n) for n in asked) - time.monotonic()
                ready = [number_of[file] for file, _ in poll.poll(max(left, 0) * 1000 + 1)]
            for number in ready:
                its = asked.pop(number)
                process = self._processes[number]
                poll.unregister(process.replies)
                try:
                    failed |= process.receive()
                except EOFError:
                    failed |= self._ended(number, its, f"worker {number} has ended {{}}")
            for number in list(asked):
                now, count = time.monotonic(), int(np.count_nonzero(self.board["status"][asked[number]]))
                if count > done[number] or (now < seen[number] + self._patience(number)):
                    seen[number] = now if count > done[number] else seen[number]
                    done[number] = count
                else:
                    poll.unregister(self._processes[number].replies)
                    hung = f"no answer for {self.timeout_seconds:g} s"
                    failed |= self._ended(number, asked.pop(number), hung)
        return failed

    def _patience(self, number: int) -> float:
        return self.timeout_seconds + (0 if self._signs[number, READY] else STARTING)

    def _ended(self, number: int, places: list[int], why: str) -> dict[int, str]:
        """Ends a worker; of the places that it was asked for those went wrong that it had not done."""
        why = why.format(self._processes.pop(number).end())
        status = self.board["status"][places]
        return {place: why for place, done in zip(places, status.tolist(), strict=True) if done != DONE}
