"""Devices, compilation options, compilation cache and memory of the machine."""

import contextlib
import ctypes
import importlib.util
import os
import resource
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from jax._src.lru_cache import LRUCache  # the class of JAX's cache of compiled programs has no public name

from evorl.errors import OptionError, require
from evorl.machine import THREADS_VARIABLE, cache_folder, count_threads
from evorl.training.records.files import write_atomically

MAX_CACHE_BYTES = 2 * 2**30  # of compiled programs, a few MB each
DAY_SECONDS = 24 * 60 * 60
DETERMINISTIC_FLAG = "--xla_gpu_deterministic_ops=true"
COLLECTIVE_TIMEOUTS = (  # timeouts for devices that wait for episodes of others; XLA's default is 40 s
    "xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "xla_cpu_collective_call_terminate_timeout_seconds",
)


def describe_devices() -> str:
    """Describe the devices of JAX, for example `2 x cpu`."""
    kinds = [one.device_kind for one in jax.local_devices()]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def trim_heap() -> None:
    """Return free heap memory to the operating system (glibc only); XLA's compiler leaves about 300 MB."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def set_host_devices(count: int | None = None, required: bool = True) -> None:
    """Split the CPU into several JAX devices; call this before JAX starts.

    Independent work then runs on all devices in parallel: seeds, members of a population, or episodes of a
    policy search. A program for one of the devices uses all cores, which is faster for a single run that
    learns by gradient.

    Args:
        count: Number of devices. None for one per core, or for one per thread if the environment variable
            PJRT_NPROC limits the threads of JAX. If it is above 1, JAX has as many threads.
        required: Whether it is an error if JAX has already started with another number.

    Raises:
        OptionError: The count is below 1, or it is required and JAX has already started with another number
            of CPU devices.
    """
    count = count_threads() if count is None else count
    require(count >= 1, "devices", count, "must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if not required or jax.local_device_count() == count or jax.default_backend() != "cpu":
            return
        there = f"JAX has already started with {jax.local_device_count()}; set devices before the first computation"
        raise OptionError(f"devices={count}: {there}") from None
    if count > 1:
        if _runs_on_cpu() and count != count_threads():
            os.environ[THREADS_VARIABLE] = str(count)
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = " ".join(
            [flags, *(f"--{one}={DAY_SECONDS}" for one in COLLECTIVE_TIMEOUTS if one not in flags)]
        ).strip()


def set_deterministic_ops() -> None:
    """Make programs on a GPU bitwise reproducible, but slower; JAX reads this when it starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if DETERMINISTIC_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC_FLAG}".strip()


def _runs_on_cpu() -> bool:
    """Return whether JAX will run on the CPU, without starting it: nothing else is installed or chosen."""
    chosen = jax.config.values["jax_platforms"]
    plugins = importlib.util.find_spec("jax_plugins") or metadata.entry_points(group="jax_plugins")
    return chosen == "cpu" or not (chosen or plugins)


def enable_compilation_cache() -> None:
    """Keep compiled programs between runs, in JAX_COMPILATION_CACHE_DIR or the user's cache folder.

    In the user's cache folder, there is one subfolder per number of threads, because programs depend on it
    but their cache keys do not. If all programs together exceed MAX_CACHE_BYTES, the least recently used ones
    are removed.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = cache_folder() / "jax"
        trim_folder(folder, MAX_CACHE_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder / f"threads-{count_threads()}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    LRUCache.put = _put_whole


_put = LRUCache.put


def _put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """Add a program to the cache of compiled programs, as `LRUCache.put` does, but never a part of it.

    JAX writes in place: another process would read half a program, and a killed process would leave one for good.
    """
    folder = os.fspath(self.path)
    if self.eviction_enabled or "://" in folder:
        _put(self, key, value)
    elif not (path := Path(folder) / f"{key}-cache").exists():
        write_atomically(path, value)


def trim_folder(folder: Path, most: int) -> None:
    """Remove the least recently used files of a folder until the rest takes at most `most` bytes."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process may remove it
            if not path.is_symlink() and path.is_file():
                status = path.stat()
                found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    excess = sum(size for _, size, _ in found) - most
    for _, size, path in sorted(found):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        excess -= size


PRECISIONS = ("default", "high", "highest")  # precisions of matrix products, as JAX names them
OPTIMIZATION_LEVEL = "xla_backend_optimization_level"  # optimization level of LLVM, from 0 to 3
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,  # for the small products of physics, waking threads is too slow
    OPTIMIZATION_LEVEL: 1,  # 3, XLA's default, compiles more slowly and does not make agents faster
}


def compiler_options() -> dict[str, Any]:
    """Return the compiler options of training: on a CPU, those that the user has not set, otherwise none.

    The user sets them in XLA_FLAGS or JAX_DISABLE_MOST_OPTIMIZATIONS.
    """
    chosen = os.environ.get("XLA_FLAGS", "")
    if jax.config.values["jax_disable_most_optimizations"]:
        chosen += OPTIMIZATION_LEVEL
    return {name: x for name, x in CPU_OPTIONS.items() if name not in chosen} if jax.default_backend() == "cpu" else {}


def fast_compile_options() -> dict[str, Any]:
    """Return the compiler options of programs that run faster than they compile; only a CPU has such options."""
    return {OPTIMIZATION_LEVEL: 0} if jax.default_backend() == "cpu" else {}


@contextlib.contextmanager
def use_precision(precision: str | None) -> Iterator[None]:
    """Trace matrix products in one of PRECISIONS, unless they have their own; None leaves the setting of JAX."""
    with contextlib.nullcontext() if precision is None else jax.default_matmul_precision(precision):
        yield


def measure_peak_memory() -> int:
    """Return the peak memory in bytes of all devices of this process, or on a CPU, of the process."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    known = [peak for peak in peaks if peak is not None]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return sum(known) if known else resident


def memory_limit() -> int:
    """Return the total memory in bytes of the first device, or on a CPU, of the machine or its container."""
    on_device = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in on_device:
        return on_device["bytes_limit"]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = Path("/sys/fs/cgroup/memory.max")
    limit = container.read_text().strip() if container.is_file() else "max"
    return min(machine, int(limit)) if limit.isdigit() else machine
