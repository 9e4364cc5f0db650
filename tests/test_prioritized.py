"""Sum trees and the replay with priorities: draws follow the numbers, sums never drift, weights correct for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl.errors import OptionError
from evorl.replay import PrioritizedReplay
from evorl.replay.sum_tree import OUT_OF_BOUNDS, SumTree

ROW = {"x": jax.ShapeDtypeStruct((), jnp.float32)}


def rows(*numbers):
    return {"x": jnp.asarray(numbers, jnp.float32)}, jnp.ones(len(numbers), bool)


@pytest.mark.parametrize("n", [1, 16, 17, 300, 5000])
def test_every_mass_finds_its_place(n):
    numbers = np.random.default_rng(n).integers(0, 4, n).astype(np.float32)
    numbers[0] = 1
    numbers[-1] = 0 if n > 1 else 1
    found = jax.jit(lambda numbers: SumTree.zeros(n).set_values(jnp.arange(n), numbers))(numbers)
    find = jax.jit(found.find)
    assert float(found.total) == numbers.sum()
    mass = np.arange(numbers.sum(), dtype=np.float32)
    wanted = np.searchsorted(np.cumsum(numbers), mass, side="right")
    np.testing.assert_array_equal(find(mass), wanted)
    np.testing.assert_array_equal(find(mass + np.float32(0.5)), wanted)
    last = np.flatnonzero(numbers)[-1]  # also of a mass that rounding has made too large
    assert int(found.find(jnp.float32(numbers.sum()))) == last
    assert int(found.find(jnp.float32(2 * numbers.sum()))) == last


def test_of_several_numbers_for_one_place_the_sums_are_of_one_that_counts():
    found = SumTree.zeros(40).set_values(jnp.array([3, 3, 3, 39, OUT_OF_BOUNDS]), jnp.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert float(found.get_values(jnp.int32(3))) in (1, 2, 4)
    assert float(found.total) == float(found.get_values(jnp.int32(3))) + 8


def drift(n, updates):
    """A tree of n numbers after so many puts of 256 random ones, some of them 0."""

    def put(i, found):
        key = jax.random.fold_in(jax.random.key(0), i)
        index = jax.random.randint(key, (256,), 0, n)
        numbers = jax.random.exponential(key, (256,)) ** 3
        return found.set_values(index, jnp.where(numbers < 0.01, 0, numbers))

    return jax.jit(lambda found: jax.lax.fori_loop(0, updates, put, found))(SumTree.zeros(n))


def test_draws_follow_the_numbers_after_many_updates():
    found = drift(2_000, 400)
    numbers = np.asarray(found.levels[0], np.float64)[:2_000]
    assert float(found.total) == pytest.approx(numbers.sum(), rel=1e-6)
    draws = 100_000
    mass = jax.random.uniform(jax.random.key(1), (draws,)) * found.total
    counts = np.bincount(np.asarray(jax.jit(found.find)(mass)), minlength=2_000)
    assert (counts[numbers == 0] == 0).all()
    order = np.argsort(numbers)  # places together until 20 draws are expected of each group
    expected = np.cumsum(numbers[order]) / numbers.sum() * draws
    group = (expected // 200).astype(int)
    seen, wanted = np.bincount(group, counts[order]), np.bincount(group, numbers[order] / numbers.sum() * draws)
    kept = wanted > 20
    chi_square = ((seen - wanted)[kept] ** 2 / wanted[kept]).sum()
    assert stats.chi2.sf(chi_square, kept.sum() - 1) > 1e-3


@pytest.mark.program
def test_a_million_numbers_have_their_shares_to_two_masses_of_all_that_are_drawn():
    n, masses = 1_000_000, 2**23  # as many as `jax.random.uniform` tells apart
    found = drift(n, 4_000)
    numbers = np.asarray(found.levels[0], np.float64)[:n]
    assert float(found.total) == pytest.approx(numbers.sum(), rel=1e-6)
    mass = (jnp.arange(masses) + 0.5) / masses * found.total
    counts = np.bincount(np.asarray(jax.jit(found.find)(mass)), minlength=n)
    errors = counts - numbers / numbers.sum() * masses
    assert (counts[numbers == 0] == 0).all()
    assert np.abs(errors).max() < 2
    assert np.abs(errors.cumsum()).max() < 2


@pytest.mark.program
def test_new_rows_have_the_highest_priority_so_far():
    replay = PrioritizedReplay(alpha=0.5).empty(8, ROW).add(*rows(1, 2, 3))
    np.testing.assert_array_equal(replay.priorities.sum_tree.get_values(jnp.arange(4)), [1, 1, 1, 0])
    replay = replay.update_priorities(jnp.array([0, 2]), jnp.array([9.0, 4.0])).add(*rows(4))
    np.testing.assert_allclose(replay.priorities.sum_tree.get_values(jnp.arange(4)), [3, 1, 2, 3], rtol=1e-5)
    replay = replay.update_priorities(jnp.array([0, 3]), jnp.array([0.0, jnp.nan])).add(
        *rows(*range(5))
    )  # of which one takes place 0
    wanted = [3, 1, 2, 1e-3, 3, 3, 3, 3]
    np.testing.assert_allclose(replay.priorities.sum_tree.get_values(jnp.arange(8)), wanted, rtol=1e-5)


@pytest.mark.program
def test_new_rows_come_first_while_errors_are_small():
    """Schaul et al. 2016, algorithm 1: the first priority is 1, that of new rows the highest so far."""
    replay = PrioritizedReplay(alpha=0.5).empty(8, ROW).add(*rows(1, 2, 3))
    replay = replay.update_priorities(jnp.array([0]), jnp.array([0.01])).add(*rows(4))
    np.testing.assert_allclose(replay.priorities.sum_tree.get_values(jnp.arange(4)), [0.1, 1, 1, 1], rtol=1e-4)


def test_rows_that_are_masked_or_lost_have_none():
    replay = (
        PrioritizedReplay().empty(8, ROW).add({"x": jnp.array([1.0, jnp.nan, 3.0])}, jnp.array([False, True, True]))
    )
    np.testing.assert_array_equal(replay.priorities.sum_tree.get_values(jnp.arange(3)), [1, 0, 0])
    assert int(replay.size) == 1
    sample = replay.sample(jax.random.key(0), (5,))
    np.testing.assert_array_equal(sample.rows["x"], np.full(5, 3.0))
    np.testing.assert_array_equal(sample.weight, np.ones(5))


def test_an_empty_replay_learns_no_priorities():
    replay = PrioritizedReplay().empty(8, ROW)
    assert float(replay.update_priorities(jnp.array([0, 3]), jnp.array([1.0, 2.0])).priorities.sum_tree.total) == 0


@pytest.mark.parametrize("added", [4, 1000])
def test_weights_are_those_of_their_equation(added):
    """(n p)^-beta over the largest of the batch; beta grows from 0.4 to 1 while 1,000 rows are added."""
    replay = PrioritizedReplay(alpha=1.0, beta=0.4, beta_steps=1000).empty(4, ROW)
    for _ in range(added // 4):
        replay = replay.add(*rows(1, 2, 3, 4))
    replay = replay.update_priorities(jnp.arange(4), jnp.array([1.0, 2.0, 3.0, 4.0]))
    sample = replay.sample(jax.random.key(0), (2, 64))
    beta = 0.4 + 0.6 * added / 1000
    weight = (4 * np.asarray(sample.rows["x"]) / 10) ** -beta
    np.testing.assert_allclose(sample.weight, weight / weight.max(1, keepdims=True), rtol=1e-4)


@pytest.mark.program
def test_in_expectation_weights_make_up_for_priorities():
    """At beta 1 a weighted mean times the largest weight is the mean over all rows, to 5 standard errors."""
    numbers = np.random.default_rng(0).normal(size=50).astype(np.float32)
    replay = PrioritizedReplay(beta=1.0).empty(50, ROW).add(*rows(*numbers))
    replay = replay.update_priorities(jnp.arange(50), jnp.asarray(np.abs(numbers) + 0.1))
    sample = replay.sample(jax.random.key(1), (4000, 64))
    probability = np.asarray(replay.priorities.sum_tree.get_values(sample.index) / replay.priorities.sum_tree.total)
    largest = (1 / (50 * probability)).max(1, keepdims=True)
    means = (np.asarray(sample.weight * sample.rows["x"]) * largest).mean(1)
    assert abs(means.mean() - numbers.mean()) < 5 * means.std() / np.sqrt(len(means))
    assert np.asarray(sample.rows["x"]).mean() != pytest.approx(numbers.mean(), abs=0.02)


@pytest.mark.program
def test_copies_under_vmap_are_as_alone():
    replay = PrioritizedReplay().empty(20, ROW)
    several = jax.vmap(lambda x: replay.add({"x": x}, jnp.ones(20, bool)))(jnp.arange(40.0).reshape(2, 20))
    learned = jax.vmap(lambda r, e: r.update_priorities(jnp.arange(20), e))(several, jnp.arange(40.0).reshape(2, 20))
    drawn = jax.vmap(lambda r, k: r.sample(k, (100,)))(learned, jax.random.split(jax.random.key(0), 2))
    for i in range(2):
        alone = jax.tree.map(lambda x, i=i: x[i], learned).sample(jax.random.split(jax.random.key(0), 2)[i], (100,))
        np.testing.assert_array_equal(drawn.index[i], alone.index)
        np.testing.assert_allclose(drawn.weight[i], alone.weight, rtol=1e-6)


@pytest.mark.parametrize(("options", "message"), [
    ({"alpha": -1.0}, "alpha=-1.0: must not be negative"),
    ({"beta": 2.0}, "beta=2.0: must be from 0 to 1"),
    ({"beta_steps": 0}, "beta_steps=0: must be from 1 to"),
    ({"priority_eps": 0.0}, "priority_eps=0.0: must be positive"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        PrioritizedReplay(**options)
