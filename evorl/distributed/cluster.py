"""Connection to Ray: a local cluster on the loopback address of this machine, or a cluster that already runs."""

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evorl import package
from evorl.distributed import reaper
from evorl.errors import OptionError, require
from evorl.machine import count_cores

LOOPBACK = "127.0.0.1"
SHORT_TEMP_FOLDER = Path("/tmp")  # the path of a socket may have 107 bytes, of which Ray uses most
SHUTDOWN_TIMEOUT_SECONDS = 20  # time for all processes of a cluster to end
OBJECT_STORE_BYTES = 100 * 2**20  # memory for the objects of a cluster; further objects are written to disk
RAY_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # otherwise Ray replaces a loopback address by that of the machine
    "RAY_USAGE_STATS_ENABLED": "0",  # otherwise statistics are sent over the internet
    "RAY_AUTH_MODE": "token",
}


def import_ray() -> Any:
    """Import Ray, after setting the variables that restrict it; raise OptionError if it is not installed."""
    os.environ.update(RAY_VARIABLES)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # otherwise Ray writes one into the home folder
    try:
        import ray  # pyright: ignore[reportMissingImports]  optional dependency
    except ImportError as error:
        raise OptionError(f"executor=ray: Ray is missing; {package.install_command('ray')}") from error
    return ray


@contextmanager
def connect_to_ray(address: str | None = None, cpus: int | None = None, use_gpus: bool = False) -> Iterator[Any]:
    """Connect to the Ray cluster at an address, or start a local one with a number of CPUs, by default all.

    The local cluster has all GPUs of this machine with `use_gpus`, otherwise none.

    A connection that already exists is used and stays open. A local cluster ends with the block and with this
    process, however the process ends. Raise OptionError if Ray is not installed, or if there is no cluster at
    the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    with (
        _connect_to_address(ray, address)
        if address is not None
        else _start_local_cluster(ray, count_cores() if cpus is None else cpus, use_gpus)
    ):
        yield ray


@contextmanager
def _connect_to_address(ray: Any, address: str) -> Iterator[None]:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # each layer of Ray raises its own type
        raise OptionError(f"address={address}: {summarize_ray_error(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _start_local_cluster(ray: Any, cpus: int, use_gpus: bool) -> Iterator[None]:
    require(1 <= cpus <= count_cores(), "cpus", cpus, f"must be from 1 to {count_cores()}, the cores of this machine")
    with _create_private_folder() as folder:
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*os.fork", RuntimeWarning)  # a warning of JAX
                ray.init(
                    num_cpus=cpus,
                    num_gpus=None if use_gpus else 0,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=folder,
                    _node_ip_address=LOOPBACK,
                )
            here = ray.util.get_node_ip_address()
            require(here == LOOPBACK, "executor", "ray", f"Ray listens on {here}; import evorl before ray")
            yield
        finally:
            ray.shutdown()


@contextmanager
def _create_private_folder() -> Iterator[str]:
    """Yield a path for the files of a cluster, in a new folder that only this user can open (mode 0700).

    Ray's own folder is open to every user. The cluster and the folder are removed at the end of the block, or
    when this process ends.
    """
    folder = os.path.realpath(
        tempfile.mkdtemp(prefix="evorl-ray-", dir=SHORT_TEMP_FOLDER if os.access(SHORT_TEMP_FOLDER, os.W_OK) else None)
    )
    waits = [sys.executable, reaper.__file__, folder]
    process = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)  # Ctrl-C does not reach it
    try:
        yield os.path.join(folder, "ray")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_TIMEOUT_SECONDS)


def summarize_ray_error(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
