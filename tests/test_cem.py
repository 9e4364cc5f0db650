import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.ec import CEM
from evorl.ec.shaping import recombination_weights
from evorl.errors import OptionError


def test_weights_are_those_of_the_paper():
    # log(1 + 5) - log(i), normalized, by hand
    raw = [1.791759, 1.098612, 0.693147, 0.405465, 0.182322]
    np.testing.assert_allclose(recombination_weights(5, 1.0), np.array(raw) / sum(raw), rtol=1e-5)


@pytest.mark.parametrize("shrink", [True, False])
def test_tell_equals_hand_computation(key, shrink):
    cem = CEM(4, shrink=shrink, initial_variance=0.5, final_noise=0.1, noise_decay=0.9)
    state = cem.init(key, {"w": jnp.array([1.0, 0.0])})
    genomes = {"w": jnp.array([[0.0, 0.0], [2.0, 1.0], [9.0, 9.0], [4.0, -1.0]])}
    state, _ = cem.tell(key, genomes, jnp.array([0.0, 5.0, jnp.nan, 7.0]), state)
    # two elites: the last member, then the second; NaN is the worst
    w = np.array([np.log(3), np.log(3) - np.log(2)])
    w /= w.sum()
    noise = 0.9 * 0.5 + 0.1 * 0.1
    np.testing.assert_allclose(state.noise, noise, rtol=1e-6)
    np.testing.assert_allclose(state.mean["w"], w[0] * np.array([4, -1]) + w[1] * np.array([2, 1]), rtol=1e-5)
    # around the old mean (1, 0), divided by two elites or not
    around = np.array([w[0] * 9 + w[1] * 1, 1]) / (2 if shrink else 1)
    np.testing.assert_allclose(state.variance, around + noise, rtol=1e-5)


def test_noise_decays_from_1e_3_to_1e_5(key):
    cem = CEM(10)
    state = cem.init(key, jnp.zeros(3))
    assert float(state.noise) == pytest.approx(1e-3)
    noise = 1e-3
    for _ in range(5):
        state, _ = cem.tell(key, jnp.zeros((10, 3)), jnp.zeros(10), state)
        noise = 0.95 * noise + 0.05 * 1e-5
        assert float(state.noise) == pytest.approx(noise, rel=1e-5)
    np.testing.assert_allclose(state.variance, noise, rtol=1e-5)  # elites on the mean


def test_members_are_drawn_from_the_distribution(key):
    cem = CEM(20000, initial_variance=0.04)
    state = cem.init(key, {"w": jnp.array([3.0, -1.0])})
    genomes, _ = cem.ask(key, state)
    np.testing.assert_allclose(genomes["w"].mean(0), [3.0, -1.0], atol=4 * 0.2 / np.sqrt(20_000))
    np.testing.assert_allclose(genomes["w"].var(0), 0.04, rtol=0.05)


def test_mirrored_members_are_pairs_around_the_mean(key):
    cem = CEM(6, mirrored=True)
    state = cem.init(key, jnp.array([3.0, -1.0]))
    genomes, _ = cem.ask(key, state)
    np.testing.assert_allclose(genomes[::2] + genomes[1::2], 2 * np.array([[3.0, -1.0]] * 3), rtol=1e-5)


def test_it_minimizes_a_sphere(key):
    cem = CEM(20, initial_variance=1.0, final_noise=1e-06, noise_decay=0.8)

    def generation(state, key):
        genomes, state = cem.ask(key, state)
        return cem.tell(key, genomes, -(genomes**2).sum(-1), state)[0], None

    state = tree.drop_weak_types(cem.init(key, jnp.full(5, 3.0)))
    state, _ = jax.lax.scan(generation, state, jax.random.split(key, 100))
    assert float((state.mean**2).sum()) < 1e-2  # 45 at the start


@pytest.mark.parametrize(
    "options", [{"population_size": 1}, {"num_elites": 11}, {"population_size": 3, "mirrored": True}]
)
def test_impossible_sizes_are_refused(options):
    with pytest.raises(OptionError):
        CEM(**options)
