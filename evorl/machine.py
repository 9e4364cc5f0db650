"""Properties of this machine. The module does not import JAX, since environment workers use it, too."""

import os
from pathlib import Path

THREADS_VARIABLE = "PJRT_NPROC"  # environment variable that JAX reads when it starts


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """Return the number of threads of JAX on the CPU: that of the environment variable PJRT_NPROC, or the cores."""
    given = os.environ.get(THREADS_VARIABLE, "")
    return max(int(given), 1) if given.isdigit() else count_cores()


def cache_folder() -> Path:
    """Return the user's cache folder for evorl."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evorl"
