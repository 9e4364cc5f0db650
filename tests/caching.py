"""Name the test suite's own folder of compiled programs, by the version of jax and the machine."""

import platform
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / f"jax-{version('jax')}-{platform.machine()}"
