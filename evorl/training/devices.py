"""What depends on the machine."""

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Any

import jax

from evorl.errors import OptionError, require
from evorl.machine import count_cores


def cache_folder() -> Path:
    """The user's cache folder for evorl."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evorl"


MAX_CACHE_BYTES = 2 * 2**30  # of compiled programs, of which one takes some MB
DAY_SECONDS = 24 * 60 * 60
COLLECTIVE_TIMEOUTS = (  # seconds that a device waits for another one's episodes: XLA would end the process after 40
    "xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "xla_cpu_collective_call_terminate_timeout_seconds",
)


def describe_devices() -> str:
    """Return what JAX computes on, such as `2 x cpu`."""
    kinds = [one.device_kind for one in jax.local_devices()]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def trim_heap() -> None:
    """Return free memory of the heap to the system, where there is glibc: XLA's compiler leaves some 300 MB of it."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def set_host_devices(count: int | None = None, required: bool = True) -> None:
    """Makes the CPU so many devices of one thread each, by default as many as it has cores, before JAX starts.

    What is independent then runs on all of them: seeds, members of a population, episodes of a policy search. With one
    device all cores serve it, which is better for a single run that learns by gradient. Raises OptionError where count
    is below 1, or, where required, where JAX has started with others.
    """
    count = count_cores() if count is None else count
    require(count >= 1, "devices", count, "must be at least 1")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if not required or jax.local_device_count() == count or jax.default_backend() != "cpu":
            return
        there = f"JAX has started with {jax.local_device_count()}; choose before anything is computed"
        raise OptionError(f"devices={count}: {there}") from None
    if count > 1:
        os.environ["PJRT_NPROC"] = "1"
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = " ".join(
            [flags, *(f"--{one}={DAY_SECONDS}" for one in COLLECTIVE_TIMEOUTS if one not in flags)]
        ).strip()


def enable_compilation_cache() -> None:
    """Keep compiled programs between runs, in JAX_COMPILATION_CACHE_DIR or the user's cache folder.

    There they lie by the number of threads, which they depend on though their keys do not, and those used longest ago
    are removed where all take more than MAX_CACHE_BYTES.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        threads = os.environ.get("PJRT_NPROC", str(count_cores()))
        folder = cache_folder() / "jax"
        trim_folder(folder, MAX_CACHE_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder / f"threads-{threads}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def trim_folder(folder: Path, most: int) -> None:
    """Remove the files of a folder that were used longest ago, until the others take at most so many bytes."""
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


OPTIMIZATION_LEVEL = "xla_backend_optimization_level"  # of LLVM, from 0 to 3
CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,  # waking other threads costs more than most of physics' hundreds of products
    OPTIMIZATION_LEVEL: 1,  # with 3, XLA's default, programs take longer to compile, and agents run no faster
}


def compiler_options() -> dict[str, Any]:
    """What training is compiled with: on a CPU what XLA_FLAGS and JAX_DISABLE_MOST_OPTIMIZATIONS leave to choose."""
    chosen = os.environ.get("XLA_FLAGS", "")
    if jax.config.values["jax_disable_most_optimizations"]:
        chosen += OPTIMIZATION_LEVEL
    return {name: x for name, x in CPU_OPTIONS.items() if name not in chosen} if jax.default_backend() == "cpu" else {}


def measure_peak_memory() -> int:
    """Bytes: the most that the first device has held, or, on a CPU, this process."""
    on_device = jax.local_devices()[0].memory_stats() or {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return on_device.get("peak_bytes_in_use", resident)


def memory_limit() -> int:
    """Bytes that the first device has in all, or, on a CPU, this machine or its container."""
    on_device = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in on_device:
        return on_device["bytes_limit"]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = Path("/sys/fs/cgroup/memory.max")
    limit = container.read_text().strip() if container.is_file() else "max"
    return min(machine, int(limit)) if limit.isdigit() else machine
