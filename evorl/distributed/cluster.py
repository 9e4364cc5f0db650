"""Ray: a cluster of this machine alone, on its loopback address, or one that is there already."""

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
SHORT_TEMP_FOLDER = Path("/tmp")  # the path of a socket has at most 107 bytes, most of which are Ray's
SHUTDOWN_TIMEOUT_SECONDS = 20  # in which all of a cluster is gone
OBJECT_STORE_BYTES = 100 * 2**20  # bytes of memory that all its objects take, more go to the disk
RAY_VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or a loopback address is changed to the machine's own
    "RAY_USAGE_STATS_ENABLED": "0",  # which are sent over the internet
    "RAY_AUTH_MODE": "token",
}


def import_ray() -> Any:
    """The module ray, told before it is imported what it may not do; raises OptionError where there is none."""
    os.environ.update(RAY_VARIABLES)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or it writes one into the home folder
    try:
        import ray  # pyright: ignore[reportMissingImports]  an extra
    except ImportError as error:
        raise OptionError(f"executor=ray: Ray is missing; {package.install_command('ray')}") from error
    return ray


@contextmanager
def connect_to_ray(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Ray, with a cluster of so many of this machine's CPUs, by default all, or the one at an address.

    Where it is connected already it stays so. A cluster of its own ends with the block, and with this process, however
    it ends. Raises OptionError where there is no Ray, or no cluster at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    with (
        _connect_to_address(ray, address)
        if address is not None
        else _start_local_cluster(ray, count_cores() if cpus is None else cpus)
    ):
        yield ray


@contextmanager
def _connect_to_address(ray: Any, address: str) -> Iterator[None]:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # each of its layers raises its own
        raise OptionError(f"address={address}: {summarize_ray_error(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _start_local_cluster(ray: Any, cpus: int) -> Iterator[None]:
    require(1 <= cpus <= count_cores(), "cpus", cpus, f"must be from 1 to {count_cores()}, as many as this machine has")
    with _create_private_folder() as folder:
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*os.fork", RuntimeWarning)  # JAX warns of it
                ray.init(
                    num_cpus=cpus,
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=folder,
                    _node_ip_address=LOOPBACK,
                )
            here = ray.util.get_node_ip_address()
            require(here == LOOPBACK, "executor", "ray", f"Ray listens on {here}: import it nowhere before evorl does")
            yield
        finally:
            ray.shutdown()


@contextmanager
def _create_private_folder() -> Iterator[str]:
    """Yield a path for a cluster's files, in a new folder of mode 0700: Ray opens its own folder to every user.

    The cluster and the folder are removed at the end of the block, or when this process ends.
    """
    folder = os.path.realpath(
        tempfile.mkdtemp(prefix="evorl-ray-", dir=SHORT_TEMP_FOLDER if os.access(SHORT_TEMP_FOLDER, os.W_OK) else None)
    )
    waits = [sys.executable, reaper.__file__, folder]
    process = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)  # which Ctrl-C does not reach
    try:
        yield os.path.join(folder, "ray")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_TIMEOUT_SECONDS)


def summarize_ray_error(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
