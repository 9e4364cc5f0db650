"""The machine that a process runs on; without JAX, since workers of environments ask too."""

import os


def count_cores() -> int:
    """Return how many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
