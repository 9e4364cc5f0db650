"""Server in the main process of a sweep, which gives the trials of its store to workers on any machine."""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from evorl.errors import OptionError
from evorl.sweeps import messages
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.messages import MainProcessAddress
from evorl.sweeps.store import SweepStore, TrialCache
from evorl.sweeps.trial_queue import StoreQueue

MAX_REASON_LENGTH = 1000  # characters of the reason of a failed trial
RETRY_SECONDS = 0.1  # pause after a connection that could not be accepted


@contextmanager
def serve_store(folder: Path, definition: SweepDefinition, host: str, port: int = 0) -> Iterator[MainProcessAddress]:
    """Serve the trials of a sweep until the end of the block, each worker in a thread of its own.

    This process alone opens the database, so that no lock crosses the network. A worker owns its trials as
    long as it is connected and says something every SILENCE_SECONDS; otherwise, other workers get them.

    Args:
        folder: Folder of the sweep.
        definition: Definition of the sweep.
        host: Address or name of the network interface to listen on.
        port: Port to listen on; 0 for a free one.

    Yields:
        The address with a new token, which is also written to the folder.

    Raises:
        OptionError: If the process cannot listen there.
    """
    try:
        listener = Listener((host, port), backlog=128)
    except OSError as error:
        raise OptionError(f"listen={host}:{port}: {error.strerror or error}") from error
    at: Any = listener.address
    address = MainProcessAddress(host, at[1], secrets.token_hex(32))
    server = StoreServer(folder, definition, listener, address.token)
    threading.Thread(target=server.accept_workers, daemon=True).start()
    try:
        address.write(folder)
        yield address
    finally:
        server.close()
        with contextlib.suppress(OSError):
            (folder / messages.ADDRESS_FILE).unlink()


class StoreServer:
    """Threads that serve the workers of a sweep."""

    def __init__(self, folder: Path, definition: SweepDefinition, listener: Listener, token: str) -> None:
        self._folder, self._definition, self._listener, self._token = folder, definition, listener, token
        self._lock, self._connections, self._cache = threading.Lock(), set[Connection](), TrialCache()
        self._is_closed = False

    def accept_workers(self) -> None:
        """Serve every worker that connects, until `close` is called."""
        while not self._is_closed:
            try:
                connection: Any = self._listener.accept()
            except (OSError, EOFError):  # a client that left at once, no more files, or `close`
                time.sleep(RETRY_SECONDS)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and close all connections, which ends their workers."""
        self._is_closed = True
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.close()

    def _serve(self, connection: Connection) -> None:
        """Answer one worker until it leaves; its trials are released if it says so, and else count as a death."""
        with connection, contextlib.suppress(ConnectionError, OSError, EOFError):
            if not authenticate_worker(connection, self._token):
                return
            with self._lock:
                self._connections.add(connection)
            try:
                with closing(SweepStore(self._folder, cache=self._cache)) as store, store.register_owner() as owner:
                    self._answer(connection, store, owner)
            except (ConnectionError, EOFError):
                raise
            except Exception as error:  # a damaged store, a full disk, or any error of a sampler
                messages.send(connection, {"error": f"{error}" or type(error).__name__})
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def _answer(self, connection: Connection, store: SweepStore, owner: str) -> None:
        queue = StoreQueue(store, self._definition, self._definition.build_sampler(), owner)
        messages.send(connection, {"definition": self._definition.to_data(), "settings": self._read_settings(store)})
        while True:
            if not connection.poll(messages.SILENCE_SECONDS):
                raise ConnectionError("the worker is silent")
            match messages.receive(connection):
                case [messages.LEAVE]:
                    return
                case [messages.PING]:
                    reply: Any = True
                case [messages.CLAIM, int(n)] if 1 <= n < 2**31:
                    reply = [messages.encode_trial(one) for one in queue.claim_trials(n)]
                case [messages.OBSERVE, int(number), evaluation]:
                    store.require_owner(number, owner)
                    reply = queue.observe(number, messages.decode_evaluation(evaluation))
                case [messages.END, int(number), state, used, message]:
                    store.require_owner(number, owner)
                    messages.require_end(state, used, message)
                    reply = queue.end_trial(number, state, used, message[:MAX_REASON_LENGTH])
                case _:
                    raise ConnectionError("a message is not known")
            messages.send(connection, {"reply": reply})

    def _read_settings(self, store: SweepStore) -> dict[str, Any]:
        return {name: value for name, value in store.settings.items() if name in ("vmapped", "vectorized")}


def authenticate_worker(connection: Connection, token: str) -> bool:
    """Return whether the other side knows the token; prove to it that this side does, too."""
    try:
        deliver_challenge(connection, token.encode())
        answer_challenge(connection, token.encode())
    except Exception:  # multiprocessing raises its own types, and asserts
        return False
    return True
