"""Several processes that run one training together, each on devices of its own, as `jax.distributed` connects them.

All processes execute the same program. Whatever depends on a clock, a signal or a file is decided by the first
process, which alone writes files and output. In a single process, nothing here has an effect.
"""

import io
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the key-value store has no public name
from jax.experimental import multihost_utils

from evorl.errors import OptionError, require

T = TypeVar("T")

AUTO, OFF = "auto", "off"
CONNECT_SECONDS = 300.0  # how long processes wait for the first one to start
POLL_SECONDS = 1.0
PATIENCE = 20.0  # seconds without a sign of life after which a process counts as dead
CONNECTION_ERRORS = ("Gloo", "NCCL", "UNAVAILABLE", "Connection closed")  # in what XLA raises if another process dies
MAX_KEPT = 1000  # agreed values that the store keeps, far more than one process is ahead of another
PREFIX = "evorl"
# environment variables with the number of processes, for launchers that jax.distributed recognizes
COUNT_VARIABLES = {"SLURM_STEP_NODELIST": "SLURM_NTASKS", "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE"}
KUBERNETES_VARIABLES = ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")
_calls = itertools.count()
_advice: list[str] = []  # what the message about a dead process adds


def _get_client() -> Any:
    """Return the client of the key-value store that all processes share."""
    return distributed.global_state.client


def count() -> int:
    """Return the number of processes of this training."""
    return distributed.global_state.num_processes or 1


def index() -> int:
    """Return the index of this process, from 0."""
    return distributed.global_state.process_id


def is_first() -> bool:
    """Return whether this is the first process, which decides and writes."""
    return index() == 0


def connect(option: str = AUTO) -> None:
    """Connect the processes of a training; call this before JAX starts.

    Args:
        option: "auto" to ask the launcher (SLURM, Open MPI, or Kubernetes) and to run alone without one, "off"
            to run alone, or ADDRESS,COUNT,ID: the address of the first process with a port, the number of
            processes, and the index of this one.

    Raises:
        OptionError: The option is invalid, or the processes did not find each other.
    """
    if count() > 1 or not needs_several(option):
        return
    given: dict[str, Any] = {}
    if option != AUTO:
        parts = option.split(",")
        allowed = "must be auto, off, or ADDRESS:PORT,COUNT,ID, such as node0:1234,4,0"
        address, *numbers = parts
        fits = len(parts) == 3 and ":" in address and all(number.isdigit() for number in numbers)
        require(fits and int(numbers[1]) < int(numbers[0]), "distributed", option, allowed)
        given = {"coordinator_address": address, "num_processes": int(numbers[0]), "process_id": int(numbers[1])}
        print(f"process {numbers[1]} of {numbers[0]}: waiting for the others at {address}", file=sys.stderr, flush=True)
        if numbers[1] != "0":
            _wait_for_first(address)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from evorl's own handler
    try:
        with _interruptible():
            jax.distributed.initialize(**given)
    except (RuntimeError, ValueError) as error:
        line = str(error).partition("\n")[0]
        raise OptionError(f"distributed={option}: the processes did not find each other: {line:.200}") from error
    if count() > 1:
        _Watcher().start()


def _wait_for_first(address: str) -> None:
    """Wait until the first process answers; JAX would wait without regard to signals, and then abort."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() > end or isinstance(error, OverflowError | socket.gaierror):
                raise OptionError(f"distributed: no process answers at {address}: {error}") from error
            time.sleep(0.5)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once within this context, which waits outside of Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def needs_several(option: str) -> bool:
    """Return whether a training with this option has several processes; see `connect`."""
    return option != OFF and (option != AUTO or _has_launcher(os.environ))


def _has_launcher(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher that jax.distributed recognizes has started several processes."""
    for launcher, number in COUNT_VARIABLES.items():
        if launcher in environment and environment.get(number, "1") != "1":
            return True
    return all(name in environment for name in KUBERNETES_VARIABLES)


def agreed(value: T) -> T:
    """Return the value that the first process passes; all processes must call this in the same order.

    Args:
        value: Value of this process, which JSON can represent.
    """
    if count() == 1:
        return value
    client, call = _get_client(), next(_calls)
    key = f"{PREFIX}/agreed/{call}"
    if not is_first():
        return json.loads(_wait_for(client, key))
    text = json.dumps(value)
    client.key_value_set(key, text)
    if call >= MAX_KEPT:
        client.key_value_delete(f"{PREFIX}/agreed/{call - MAX_KEPT}")
    return json.loads(text)


def _wait_for(client: Any, key: str) -> str:
    while True:
        try:
            return client.blocking_key_value_get(key, 10_000)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def any_process(flag: bool) -> bool:
    """Return whether any process has passed True so far; all processes must call this in the same order.

    Args:
        flag: Whether this process says so.
    """
    if count() == 1:
        return flag
    client = _get_client()
    if flag and not is_first():
        client.key_value_set(f"{PREFIX}/raised/{index()}", "", allow_overwrite=True)
    return agreed(flag or (is_first() and bool(client.key_value_dir_get(f"{PREFIX}/raised/"))))


def require_same_options(options: Mapping[str, Any]) -> None:
    """Raise OptionError in all processes if an option differs between them.

    Args:
        options: Options by name.
    """
    first, *others = _exchange({name: repr(value) for name, value in options.items()})
    for who, own in enumerate(others, 1):
        for name in first.keys() | own.keys():
            same = own.get(name) == first.get(name)
            what = f"but {own.get(name)} in process {who}; all processes need the same command"
            require(same, name, options.get(name) if is_first() else first.get(name), what)


def _exchange(value: T) -> list[T]:
    """Return the values of all processes, which JSON can represent."""
    if count() == 1:
        return [value]
    client, call = _get_client(), next(_calls)
    client.key_value_set(f"{PREFIX}/exchanged/{call}/{index()}", json.dumps(value))
    return [json.loads(_wait_for(client, f"{PREFIX}/exchanged/{call}/{who}")) for who in range(count())]


def on_first(action: Callable[[], T]) -> T:
    """Execute an action in the first process only, and return its result in all processes.

    Args:
        action: Function without arguments, whose result JSON can represent.

    Raises:
        OptionError: The action raised an OptionError; likewise for OSError.
    """
    if count() == 1:
        return action()
    outcome: dict[str, Any] = {}
    failure: Exception | None = None
    if is_first():
        try:
            outcome = {"result": action()}
        except (OptionError, OSError) as error:
            failure, outcome = error, {"error": str(error), "is_option": isinstance(error, OptionError)}
    outcome = agreed(outcome)
    if failure is not None:
        raise failure
    if "error" in outcome:
        raise (OptionError if outcome["is_option"] else OSError)(outcome["error"])
    return outcome["result"]


def synchronize(name: str) -> None:
    """Wait until all processes have come here.

    Args:
        name: Name of the place in the program.
    """
    if count() > 1:
        multihost_utils.sync_global_devices(name)


def gathered(tree: Any) -> Any:
    """Return a pytree with the whole of each array on this host; all processes must call this together.

    Args:
        tree: Pytree of arrays.
    """
    if count() == 1:
        return tree
    return jax.tree.map(lambda x: x if x.is_fully_addressable else _gather(x), tree)


def _gather(x: Any) -> Any:
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_gather(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return multihost_utils.process_allgather(x, tiled=True)


def only_first_prints() -> AbstractContextManager[Any]:
    """Return a context manager within which standard output of all processes but the first one is discarded."""
    return nullcontext() if is_first() else redirect_stdout(io.StringIO())


def advise(text: str) -> None:
    """Set what the message about a dead process says besides.

    Args:
        text: Advice, such as a command.
    """
    _advice[:] = [text]


@contextmanager
def session(option: str) -> Iterator[None]:
    """Connect the processes of a training, and end all of them if one of them fails within this context.

    Args:
        option: See `connect`.
    """
    connect(option)
    try:
        yield
    except BaseException as error:
        if count() > 1 and any(word in str(error) for word in CONNECTION_ERRORS):
            time.sleep(PATIENCE + 10 * POLL_SECONDS)  # if another process has died, the watcher ends this one
        leave(f"process {index()}: {error or type(error).__name__}")
        raise
    leave()


def leave(problem: str | None = None) -> None:
    """Say that this process ends; with a problem, the other processes end, too.

    Args:
        problem: Why it ends before the training does; None if it has done its part.
    """
    if count() == 1:
        return
    _Watcher.is_leaving = True
    kind = "done" if problem is None else "failed"
    try:
        _get_client().key_value_set(f"{PREFIX}/{kind}/{index()}", problem or "", allow_overwrite=True)
    except jax.errors.JaxRuntimeError:
        return  # the first process has ended


class _Watcher(threading.Thread):
    """Thread that gives a sign of life, and ends this process if another one has died or failed.

    The first process watches all others, which watch the first one.
    """

    is_leaving = False

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.client = _get_client()
        self.seen: dict[int, tuple[str, float]] = {}  # last sign of life of a process, and when it was new

    def run(self) -> None:
        host, heard = os.uname().nodename, time.monotonic()
        for turn in itertools.count():
            problem = None
            try:
                self.client.key_value_set(f"{PREFIX}/alive/{index()}", f"{host} {turn}", allow_overwrite=True)
                problem, heard = self._find_problem(), time.monotonic()
            except jax.errors.JaxRuntimeError:  # usually, JAX aborts before
                if time.monotonic() - heard > PATIENCE:
                    problem = "process 0 has died"
            if _Watcher.is_leaving:
                return
            if problem is not None:
                self._end(problem)
            time.sleep(POLL_SECONDS)

    def _list(self, kind: str) -> dict[int, str]:
        found = self.client.key_value_dir_get(f"{PREFIX}/{kind}/")
        return {int(key.rpartition("/")[2]): value for key, value in found}

    def _find_problem(self) -> str | None:
        """Return which process has failed or died, or None."""
        for who, why in self._list("failed").items():
            if who != index():
                return why
        if not is_first():
            return None
        now, done = time.monotonic(), self._list("done")
        for who, sign in self._list("alive").items():
            before, when = self.seen.get(who, ("", now))
            self.seen[who] = (sign, now if sign != before else when)
            if who not in done and now - self.seen[who][1] > PATIENCE:
                return f"process {who} on {sign.partition(' ')[0]} has died"
        return None

    def _end(self, problem: str) -> None:
        """Print why this process ends, tell the others, and end at once: the main thread may wait for a device."""
        if is_first():
            leave(problem)
            print(f"error: {'; '.join([problem, *_advice])}", file=sys.stderr, flush=True)
            time.sleep(2 * POLL_SECONDS)  # the others read it here
        elif problem.startswith("process 0"):
            print(f"error: {problem}", file=sys.stderr, flush=True)
        os._exit(1)
