"""Blocks of an accelerator: the numbers of a CPU, up to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.ec import SeedGA
from evorl.ec.cells import CVTArchive
from evorl.ec.noise import ACCELERATOR_BLOCK_NUMBERS, CPU_BLOCK_NUMBERS, MIN_BLOCK, Noise, choose_block


@pytest.fixture
def on_accelerator(monkeypatch):
    """Let the code choose the blocks of an accelerator; the computation stays on the CPU."""
    return lambda: monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def test_an_accelerator_takes_larger_blocks(on_accelerator):
    assert choose_block(4096, 1000) == 64 == 2 ** int(np.log2(CPU_BLOCK_NUMBERS // 1000))
    assert choose_block(4096, 10**6) == MIN_BLOCK
    on_accelerator()
    assert choose_block(4096, 1000) == 4096
    assert choose_block(4096, 10**6) == 64 == 2 ** int(np.log2(ACCELERATOR_BLOCK_NUMBERS // 10**6))


@pytest.mark.parametrize("source", ["exact", "hash", "table"])
def test_rows_of_noise_do_not_depend_on_the_block(source, on_accelerator):
    noise, key, mean = Noise(source, table_size=10**5), jax.random.key(1), jnp.zeros(20_000)
    table = noise.init(jax.random.key(0))
    sample = lambda: np.asarray(jax.jit(lambda: noise.sample_members(mean, 1.0, table, key, 24, True))())  # noqa: E731
    on_cpu = sample()
    on_accelerator()
    np.testing.assert_allclose(on_cpu, sample(), rtol=1e-6)  # XLA fuses them in another way


def test_cells_do_not_depend_on_the_block(on_accelerator):
    archive = CVTArchive(cells=50, samples=100)
    descriptors = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (37, 2)), jnp.float32)
    on_cpu = jax.jit(archive.find_cells)(descriptors)
    nearest = ((np.asarray(descriptors)[:, None] - archive.centroids) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(on_cpu, nearest)
    on_accelerator()
    np.testing.assert_array_equal(on_cpu, jax.jit(lambda x: archive.find_cells(x))(descriptors))


def test_members_of_a_seed_ga_do_not_depend_on_the_block(on_accelerator):
    evolver = SeedGA(8, num_parents=2, candidates=1)
    key = jax.random.key(0)
    state = evolver.init(key, {"w": jnp.zeros((3, 4))})
    genomes, state = evolver.ask(jax.random.key(1), state)
    build = lambda: jax.jit(lambda genomes: evolver.materialize(state, genomes))(genomes)  # noqa: E731
    on_cpu = build()
    on_accelerator()
    np.testing.assert_allclose(on_cpu["w"], build()["w"], rtol=1e-6)
    assert tree.leading_size(on_cpu) == 8
    assert float(jnp.std(on_cpu["w"])) > 0
