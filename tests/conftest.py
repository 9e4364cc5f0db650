import os
from importlib.metadata import version
from pathlib import Path

from tests.caching import CACHE

os.environ["XDG_CACHE_HOME"] = str(CACHE)  # for the commands that tests start too
# Compiling is most of the time that tests take, so little is optimized, and kernels are not emitted by way of MLIR,
# which takes twice as long; on busy cores the threads of OpenBLAS spin, 40 times as long for a 10 x 10 solve.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if version("jaxlib") < "0.11":  # which no longer has the flag
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jaxtyping
import pytest

import tests.typechecking  # noqa: F401  the hook finds it as an attribute

jaxtyping.install_import_hook("evorl", "tests.typechecking.check")  # annotations run, shapes included

from evorl.training.devices import enable_compilation_cache  # noqa: E402
from tests.tiers import *  # noqa: E402, F403  pytest finds its hooks here

enable_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def leaves_equal(a, b):
    """Whether two pytrees hold the same bits."""
    import numpy as np

    return all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def optimized():
    """Let XLA optimize what the test compiles; for tests that compute for much longer than they compile."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Forget compiled programs in time: they take memory, and each maps some of at most 65,000 regions."""
    yield
    process = Path("/proc/self")
    if not process.is_dir():
        jax.clear_caches()
        return
    resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident > 2e9 or (process / "maps").read_text().count("\n") > 20_000:
        jax.clear_caches()


def pytest_terminal_summary(terminalreporter, config):
    size = sum(file.stat().st_size for file in CACHE.rglob("*") if file.is_file())
    folder = CACHE.relative_to(config.rootpath)
    terminalreporter.write_line(f"Compiled programs are kept in {folder} ({size / 1e6:.0f} MB).")
    if "not program" in config.option.markexpr:
        rest = 'pytest -n 2 --dist worksteal -m "program and not smoke"'
        terminalreporter.write_line(f"Unit tests and a smoke test of each workflow family ran. The rest: {rest}")
