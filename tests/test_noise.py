"""The noise of evolution strategies: moments, distribution, and no correlation that should not be there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl.ec import Noise
from evorl.ec.noise import hash_words, mix_bits, threefry
from evorl.errors import OptionError

ROWS, SIZE = 64, 16_384
SOURCES = [Noise("exact"), Noise("hash"), Noise("table", 2**22)]
every = pytest.mark.parametrize("noise", SOURCES, ids=lambda noise: noise.source)


def drawn(noise, seed=0, n=ROWS, size=SIZE):
    key = jax.random.key(seed)
    return np.asarray(
        jax.jit(lambda table: noise.sample_members(jnp.zeros(size), 1.0, table, key, n))(noise.init(jax.random.key(99)))
    )


@every
def test_moments_are_those_of_a_standard_normal(noise):
    x = drawn(noise).astype(np.float64).ravel()
    moments = [np.mean(x**k) for k in (1, 2, 3, 4)]
    errors = np.sqrt(np.array([1, 2, 15, 96]) / x.size)  # variances of x, x^2, x^3, x^4 of a standard normal
    assert np.all(np.abs(np.array(moments) - [0, 1, 0, 3]) < 4 * errors)


@every
def test_the_distribution_is_normal(noise):
    x = drawn(noise, seed=1).ravel()
    assert stats.kstest(x, "norm").pvalue > 1e-3
    rows = [stats.kstest(row, "norm").pvalue for row in drawn(noise, seed=2)]
    assert stats.kstest(rows, "uniform").pvalue > 1e-4  # the p-values of many are uniform


@every
def test_the_tails_are_there(noise):
    x = drawn(noise, seed=3).ravel()
    beyond = (np.abs(x) > 4).sum()
    expected = x.size * 2 * stats.norm.sf(4)  # 66
    assert abs(beyond - expected) < 4 * np.sqrt(expected)
    assert np.abs(x).max() < 5.5


def correlations(a, b):
    """Of all rows of a with all rows of b, in standard errors."""
    return a @ b.T / np.sqrt(a.shape[1])


@pytest.mark.parametrize("noise", SOURCES[:2], ids=lambda noise: noise.source)
def test_rows_keys_and_neighbours_are_not_correlated(noise):
    x, other = drawn(noise, seed=4), drawn(noise, seed=5)
    rows = correlations(x, x)[~np.eye(ROWS, dtype=bool)]
    assert np.abs(rows).max() < 5
    assert rows.std() == pytest.approx(1, abs=0.1)
    keys = correlations(x, other)
    assert np.abs(keys).max() < 5
    assert keys.std() == pytest.approx(1, abs=0.1)
    for lag in (1, 2, 3, 16, 64, 1024):
        flat = x.ravel()
        assert abs((flat[lag:] * flat[:-lag]).mean()) * np.sqrt(flat.size) < 4
        squares = flat**2 - 1
        assert abs((squares[lag:] * squares[:-lag]).mean() / 2) * np.sqrt(flat.size) < 4


def test_consecutive_keys_give_streams_that_are_not_correlated():
    """The driver's keys are fold_in(key, 0), fold_in(key, 1), ...; raw keys that differ in a bit are the hardest."""
    raw = jnp.array([[0, i] for i in range(32)] + [[i, 0] for i in range(1, 32)], jnp.uint32)
    keys = jax.random.wrap_key_data(raw)
    x = np.asarray(jax.vmap(lambda key: Noise("hash").sample_members(jnp.zeros(SIZE), 1.0, None, key, 1)[0])(keys))
    found = correlations(x, x)[~np.eye(len(x), dtype=bool)]
    assert np.abs(found).max() < 5
    assert found.std() == pytest.approx(1, abs=0.1)


def test_a_bit_of_the_hash_moves_half_of_the_others():
    x = jnp.arange(4096, dtype=jnp.uint32) * jnp.uint32(2654435761)
    for bit in range(32):
        changed = np.asarray(mix_bits(x) ^ mix_bits(x ^ jnp.uint32(1 << bit)))
        flips = np.unpackbits(changed.view(np.uint8)).reshape(len(x), 32).mean(0)
        assert np.abs(flips - 0.5).max() < 0.05
    assert len(np.unique(mix_bits(jnp.arange(2**16, dtype=jnp.uint32)))) == 2**16


@pytest.mark.parametrize("words", [threefry, lambda key, counter: hash_words(jax.random.bits(key, (2,)), counter)])
def test_bits_are_balanced(words):
    bits = np.unpackbits(
        np.asarray(words(jax.random.key(7), jnp.arange(2**18, dtype=jnp.uint32))).view(np.uint8)
    ).reshape(-1, 32)
    assert np.abs(bits.mean(0) - 0.5).max() < 4 * 0.5 / np.sqrt(2**18) * 1.3


def test_a_table_gives_slices_of_itself():
    noise = Noise("table", 1000)
    table = noise.init(jax.random.key(0))
    rows = np.asarray(noise.sample_members(jnp.zeros(990), 1.0, table, jax.random.key(1), 500))
    starts = {int(np.flatnonzero(np.asarray(table) == row[0])[0]) for row in rows}
    assert starts == set(range(11))
    for row in rows[:20]:
        first = int(np.flatnonzero(np.asarray(table) == row[0])[0])
        np.testing.assert_array_equal(row, table[first : first + 990])


def test_mistakes_are_told():
    with pytest.raises(OptionError, match="source"):
        Noise("hsah")
    with pytest.raises(OptionError, match="table_size=100: must be above the number of parameters, 200"):
        Noise("table", 100).sample_members(jnp.zeros(200), 1.0, jnp.zeros(100), jax.random.key(0), 2)


@pytest.mark.program
@pytest.mark.parametrize("size", [7, 10])
@pytest.mark.parametrize("n", [2, 6, 12, 16])
@every
def test_seeds_draw_what_a_population_is_drawn_with(noise, n, size):
    mean, key = jnp.zeros(size), jax.random.key(3)
    table = noise.init(jax.random.key(99))
    seeds = noise.sample_seeds(key, n, size)
    rows = jax.vmap(lambda seed: seed.sign * noise.generate_row(seed, table, size))(seeds)
    np.testing.assert_allclose(rows, noise.sample_members(mean, 1.0, table, key, n, mirrored=True), rtol=1e-6)


@pytest.mark.parametrize("noise", SOURCES[:2], ids=lambda noise: noise.source)
def test_rows_differ_beyond_what_a_word_counts(noise):
    """2^20 pairs of 2^13 numbers are twice what 32 bits count."""
    size = 2**13
    seeds = noise.sample_seeds(jax.random.key(0), 2**21, size)
    rows = [
        noise.generate_row(jax.tree.map(lambda x, i=i: x[2 * i], seeds), None, size) for i in (5, 2**18 + 5, 2**19 + 5)
    ]
    found = np.corrcoef(np.stack(rows)) * np.sqrt(size)
    assert np.abs(found[~np.eye(3, dtype=bool)]).max() < 4
