"""Queue of the trials of a sweep whose main process is on another machine, or in another process of this one."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from evorl.errors import OptionError
from evorl.sweeps import messages
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.messages import MainProcessAddress
from evorl.sweeps.trials import Evaluation, SweepTrial

REPLY_SECONDS = 300  # time for an answer; a suggestion after thousands of trials takes seconds


class RemoteQueue:
    """Queue of trials behind a connection to the main process of a sweep.

    Args:
        connection: Connection on which both sides have proved that they know the token.
        folder: Folder of the sweep on storage that all machines share.
        trust: Packages whose classes the definition may name.
        lose: Function that is called if the main process is lost; it asks to save and end.

    Raises:
        ConnectionError: The main process is gone.
        OptionError: The definition is not valid.
    """

    def __init__(self, connection: Connection, folder: Path, trust: Sequence[str], lose: Callable[[], None]) -> None:
        self.folder, self._connection, self._lock, self._lose = folder, connection, threading.Lock(), lose
        match self._receive():
            case {"definition": data, "settings": {"vmapped": int(vmapped), "vectorized": bool() | None as vectorized}}:
                self.definition = SweepDefinition.from_data(data, trust, f"{folder}: the sweep")
                self.vmapped, self.vectorized = vmapped, vectorized
            case _:
                raise ConnectionError("the first message of the main process is not valid")

    def claim_trials(self, n: int) -> list[SweepTrial]:
        """Return up to n trials that belong to this worker, as the main process suggests them."""
        trials = self._ask(messages.CLAIM, n)
        found = [messages.decode_trial(one) for one in trials] if isinstance(trials, list) else []
        for trial in found:
            self.definition.check_values(trial.values)
        return found

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        """Send an evaluation of a trial, and return whether to stop the trial.

        If the main process is lost, the training can save first; a resumed trial sends its evaluations again.
        """
        try:
            return self._ask(messages.OBSERVE, number, messages.encode_evaluation(evaluation)) is True
        except ConnectionAbortedError:
            raise
        except ConnectionError:
            self._lose()
            return False

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """Tell the main process how a trial ended."""
        self._ask(messages.END, number, state, float(used), message)

    def leave(self) -> None:
        """Release all unfinished trials."""
        with self._lock:
            messages.send(self._connection, [messages.LEAVE])

    def watch(self, ended: threading.Event) -> None:
        """Ask the main process every PING_SECONDS whether it is there, and call `lose` once if it is not."""
        while not ended.wait(messages.PING_SECONDS):
            try:
                self._ask(messages.PING)
            except (OSError, OptionError):
                if not ended.is_set():
                    self._lose()
                return

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            messages.send(self._connection, request)
            match self._receive():
                case {"reply": reply}:
                    return reply
        raise ConnectionError("an answer of the main process is not valid")

    def _receive(self) -> Any:
        if not self._connection.poll(REPLY_SECONDS):
            raise ConnectionError("the main process of the sweep does not answer")
        match found := messages.receive(self._connection):
            case {"error": str(problem)}:
                raise ConnectionAbortedError(f"the main process of the sweep has ended this worker: {problem:.300}")
        return found


@contextmanager
def connect_to_sweep(
    address: MainProcessAddress, folder: Path, trust: Sequence[str], lose: Callable[[], None]
) -> Iterator[RemoteQueue]:
    """Connect to the main process of a sweep, until the end of the block.

    Args:
        address: Address of the main process.
        folder: Folder of the sweep on storage that all machines share.
        trust: Packages whose classes the definition may name.
        lose: Function that is called, perhaps in another thread, if the main process is lost.

    Raises:
        OptionError: If the main process cannot be reached, or the token is wrong.
    """
    try:
        connection = Client((address.host, address.port))
        answer_challenge(connection, address.token.encode())
        deliver_challenge(connection, address.token.encode())
    except Exception as error:  # multiprocessing raises its own types, and asserts
        problem = f"the main process of the sweep at {address.host}:{address.port} cannot be reached"
        raise OptionError(f"{problem}: {str(error) or type(error).__name__:.200}") from error
    with connection:
        queue, ended = RemoteQueue(connection, folder, trust, lose), threading.Event()
        threading.Thread(target=queue.watch, args=(ended,), daemon=True).start()
        try:
            yield queue
            queue.leave()
        except (KeyboardInterrupt, SystemExit):
            queue.leave()
            raise
        finally:
            ended.set()


def make_stop_request() -> Callable[[], None]:
    """Return a function that asks this process to save and exit, the first time that any thread calls it."""
    lock = threading.Lock()

    def ask_to_stop() -> None:
        if lock.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)

    return ask_to_stop
