import os
from pathlib import Path

# Compiling is most of the time that tests take, so little is optimized, and kernels are not emitted by way of MLIR,
# which takes twice as long; on busy cores the threads of OpenBLAS spin, 40 times as long for a 10 x 10 solve.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jaxtyping
import pytest

import tests.typechecking  # noqa: F401  the hook finds it as an attribute

jaxtyping.install_import_hook("evorl", "tests.typechecking.check")  # annotations run, shapes included

from evorl.training.devices import enable_compilation_cache  # noqa: E402

enable_compilation_cache()
SLOW = Path(__file__).with_name("slow.txt")


def pytest_collection_modifyitems(config, items):
    """Marks as slow what slow.txt names; where all is collected, what it names must be there."""
    named, found = set(SLOW.read_text(encoding="utf-8").splitlines()), {item.nodeid: item for item in items}
    for name in named & found.keys():
        found[name].add_marker("slow")
    files = {name.partition("::")[0] for name in found}
    gone = [name for name in named - found.keys() if name.partition("::")[0] in files]
    if gone and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"tests/slow.txt: no test is named {min(gone)}")


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


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A process may map memory some 65,000 times, and each compiled program takes a few: all of them are too many."""
    yield
    jax.clear_caches()
