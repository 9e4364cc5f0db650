"""What depends on the machine."""

import os
import resource
import sys
from pathlib import Path

import jax


def enable_compilation_cache() -> None:
    """Keeps compiled programs between runs, in JAX_COMPILATION_CACHE_DIR or the user's cache folder."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "evorl" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def memory() -> int:
    """Bytes: the most that the first device has held, or, on a CPU, this process."""
    on_device = jax.local_devices()[0].memory_stats() or {}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return on_device.get("peak_bytes_in_use", resident)
