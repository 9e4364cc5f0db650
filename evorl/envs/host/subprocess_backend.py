"""Backend that runs host environments in worker processes, several in each."""

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
from evorl.envs.host.backends import compute_max_envs
from evorl.envs.host.serial_envs import DONE, Layout, create_shared_memory
from evorl.envs.host.worker import (
    ANSWERED,
    CLOSE,
    COMMAND_HEADER,
    COUNTER_MODULUS,
    READY,
    REQUESTED,
    RESET,
    SIGNAL_WIDTH,
    STEP,
    STEP_ON,
)

START_TIMEOUT_SECONDS = 60.0  # for the start of a worker, in addition to its environments' timeout
CLOSE_TIMEOUT_SECONDS = 2.0


class WorkerProcess:
    """A worker process, which leads a process group, and the pipes to it."""

    def __init__(self, number: int, settings: dict, recipe: bytes, board: int, signs: int) -> None:
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()
        life, self.life = os.pipe()
        given = commands, replies, life, board, signs
        self.popen = subprocess.Popen(
            [sys.executable, str(Path(worker.__file__)), *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            process_group=0,  # so that signals from a terminal (Ctrl-C) reach only the parent process
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
        )
        for file in given[:3]:
            os.close(file)
        said = json.dumps(settings | {"worker": number}).encode()
        for part in (said, recipe):
            self.send(struct.pack("<I", len(part)) + part)

    def send(self, data: bytes) -> None:
        """Write bytes to the worker; if the worker has ended, the next `receive` detects it."""
        with contextlib.suppress(BrokenPipeError):
            worker.write_all(self.commands, data)

    def receive(self) -> dict[int, str]:
        """Read the reply to one command: the error messages by place.

        Raises:
            EOFError: If the worker has ended.
        """
        (size,) = struct.unpack("<I", worker.read_exactly(self.replies, 4))
        failed = json.loads(worker.read_exactly(self.replies, size)) if size else {}
        return {int(place): error for place, error in failed.items()}

    def terminate(self, patience: float = 0.0) -> str:
        """End the worker, and all processes that its environments have started.

        Args:
            patience: Seconds that the worker gets to end by itself.

        Returns:
            How the worker ended, for an error message.
        """
        os.close(self.commands)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, if all have ended
            os.killpg(self.popen.pid, signal.SIGKILL)
        code = self.popen.wait()
        os.close(self.replies)
        os.close(self.life)
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class SubprocessBackend:
    """Backend that runs environments in worker processes; place p is in worker p modulo the number of workers.

    All workers work at the same time; a worker executes its commands sequentially. By default one command
    steps all places of a worker. With `apart`, each place has its own command, so that a place can answer
    while the next one is still being stepped.

    Args:
        count: Number of worker processes.
        recipe: Pickled description from which a worker creates an environment.
        layout: Layout of the buffers.
        timeout_seconds: Seconds without progress after which a worker has failed.
        `apart`: Whether each place is stepped by a separate command.
    """

    def __init__(self, count: int, recipe: bytes, layout: Layout, timeout_seconds: float, apart: bool = False) -> None:
        self.count, self.timeout_seconds, self.apart, self._recipe = count, timeout_seconds, apart, recipe
        self.max_envs = compute_max_envs(layout)
        self._files = create_shared_memory(layout.nbytes(self.max_envs)), create_shared_memory(count * SIGNAL_WIDTH * 4)
        self.buffers = layout.create_buffers(self.max_envs, self._files[0])
        self._signs = np.frombuffer(mmap.mmap(self._files[1], 0), np.uint32).reshape(count, SIGNAL_WIDTH)
        plain = dataclasses.asdict(layout)
        self._settings = {"path": sys.path, "layout": plain, "places": self.max_envs}
        self._processes: dict[int, WorkerProcess] = {}
        self._asked: dict[int, deque[list[int]]] = {}  # by worker: places of each unanswered command
        self._answered = [0] * count  # by worker: number of answered commands
        self._heard = [(0.0, 0)] * count  # by worker: time of the last progress, places done in its command
        self._under_way = np.zeros(self.max_envs, bool)
        self._wrong: dict[int, str] = {}  # error messages by place, until `recv` returns them

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> dict[int, str]:
        self.recv(places, len(places))  # answers to earlier commands, if any
        for number in {place % self.count for place in places} - set(self._processes):
            self._signs[number], self._answered[number], self._asked[number] = 0, 0, deque()
            self._processes[number] = WorkerProcess(number, self._settings, self._recipe, *self._files)
        self._send_command(RESET, places, seeds)
        return self.recv(places, len(places))[1]

    def send(self, places: Sequence[int], seeds: Sequence[int] = ()) -> None:
        self._send_command(STEP_ON if seeds else STEP, places, seeds, self.apart)

    def recv(self, places: Sequence[int], count: int) -> tuple[np.ndarray, dict[int, str]]:
        these = np.array(places, int)
        numbers = set((these[self._under_way[these]] % self.count).tolist())
        looking = time.perf_counter() + worker.SPIN_SECONDS
        while True:
            for number in numbers:
                while self._has_answered(number):
                    self._receive_reply(number)
                self._terminate_if_unresponsive(number)
            done = ~self._under_way[these]
            if np.count_nonzero(done) >= count:
                wrong = [place for place in places if place in self._wrong] if self._wrong else []
                return done, {place: self._wrong.pop(place) for place in wrong}
            if time.perf_counter() >= looking:
                self._wait_for_replies([number for number in numbers if self._asked.get(number)])

    def worker_index(self, place: int) -> int:
        return place % self.count

    def close(self, places: Sequence[int] | None = None) -> None:
        if places is not None:
            self.recv(places, len(places))
            self._send_command(CLOSE, places)
            self.recv(places, len(places))
            return
        while self._processes:
            self._processes.popitem()[1].terminate(CLOSE_TIMEOUT_SECONDS)
        for file in self._files:
            os.close(file)

    def _send_command(self, kind: bytes, places: Sequence[int], seeds: Sequence[int] = (), apart: bool = False) -> None:
        """Send a command to all workers that have some of the places, none of which may have an unanswered command."""
        of: dict[int, list[int]] = {}
        for i, place in enumerate(places):
            of.setdefault(place % self.count, []).append(i)
        self.buffers["status"][list(places)] = 0
        for number, its in of.items():
            here = [places[i] for i in its]
            if number not in self._processes:
                self._wrong |= dict.fromkeys(here, "its worker process has ended")
                continue
            data, asked = b"", self._asked[number]
            for part in [[i] for i in its] if apart else [its]:
                data += COMMAND_HEADER.pack(kind, len(part)) + np.array([places[i] for i in part], np.int32).tobytes()
                data += np.array([seeds[i] for i in part if seeds], np.uint64).tobytes()
            if not asked:
                self._heard[number] = time.monotonic(), 0
            asked.extend([place] for place in here) if apart else asked.append(here)
            self._under_way[here] = True
            self._processes[number].send(data)
            self._signs[number, REQUESTED] = (self._answered[number] + len(asked)) % COUNTER_MODULUS

    def _has_answered(self, number: int) -> bool:
        """Return whether a worker's counter in shared memory announces a reply, which the worker has then written."""
        if not self._asked.get(number):
            return False
        return (
            0 < (int(self._signs[number, ANSWERED]) - self._answered[number]) % COUNTER_MODULUS < COUNTER_MODULUS // 2
        )

    def _receive_reply(self, number: int) -> None:
        """Receive a worker's reply to its oldest unanswered command."""
        try:
            failed = self._processes[number].receive()
        except EOFError:
            self._terminate_worker(number, f"worker {number} has ended {{}}")
            return
        self._under_way[self._asked[number].popleft()] = False
        self._wrong |= failed
        self._answered[number] += 1
        self._heard[number] = time.monotonic(), 0

    def _wait_for_replies(self, numbers: list[int]) -> None:
        """Wait until one of the workers replies or the first of their timeouts passes."""
        poll, of = select.poll(), {self._processes[number].replies: number for number in numbers}
        for file in of:
            poll.register(file, select.POLLIN)
        left = min(self._heard[number][0] + self._response_timeout(number) for number in numbers) - time.monotonic()
        for file, _ in poll.poll(max(left, 0) * 1000 + 1):
            self._receive_reply(of[file])

    def _terminate_if_unresponsive(self, number: int) -> None:
        """End a worker that has an unanswered command and has made no progress on it before the timeout."""
        asked, now, (heard, before) = self._asked.get(number), time.monotonic(), self._heard[number]
        if not asked or now < heard + self._response_timeout(number):
            return
        done = int(np.count_nonzero(self.buffers["status"][asked[0]]))
        self._heard[number] = now, done
        if done <= before:
            self._terminate_worker(number, f"no answer for {self.timeout_seconds:g} s")

    def _response_timeout(self, number: int) -> float:
        return self.timeout_seconds + (0 if self._signs[number, READY] else START_TIMEOUT_SECONDS)

    def _terminate_worker(self, number: int, why: str) -> None:
        """End a worker; each place with an unanswered command that it had not finished gets the error message `why`."""
        why = why.format(self._processes.pop(number).terminate())
        now, *later = self._asked.pop(number)
        status = self.buffers["status"][now].tolist()
        undone = [place for place, done in zip(now, status, strict=True) if done != DONE]
        self._wrong |= dict.fromkeys([*undone, *(place for its in later for place in its)], why)
        self._under_way[[*now, *(place for its in later for place in its)]] = False
