"""Properties of this machine. The module does not import JAX, since environment workers use it, too."""

import os
from pathlib import Path

THREADS_VARIABLE = "PJRT_NPROC"  # environment variable that JAX reads when it starts
MEMORY_SHARE = 0.9  # share of a GPU's memory that processes on it take together


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """Return the number of threads of JAX on the CPU: that of the environment variable PJRT_NPROC, or the cores."""
    given = os.environ.get(THREADS_VARIABLE, "")
    return max(int(given), 1) if given.isdigit() else count_cores()


def limit_gpu_memory(share: float) -> dict[str, str]:
    """Return the environment variables of a process that uses a share of a GPU; none if it uses all of it."""
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{MEMORY_SHARE * share:.3f}"} if share < 1 else {}


def cache_folder() -> Path:
    """Return the user's cache folder for evorl."""
    given = os.environ.get("XDG_CACHE_HOME")  # empty counts as unset
    return (Path(given) if given else Path.home() / ".cache") / "evorl"
