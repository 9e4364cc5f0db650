"""What depends on the machine."""

import os
from pathlib import Path

import jax


def enable_compilation_cache() -> None:
    """Keeps compiled programs between runs, in JAX_COMPILATION_CACHE_DIR or the user's cache folder."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "evorl" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
