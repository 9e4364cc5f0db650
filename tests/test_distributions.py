"""Distributions against SciPy, and densities against their own integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from evorl.errors import OptionError
from evorl.networks.distributions import Categorical, Head, Normal, TanhNormal, sample_straight_through
from evorl.spaces import Box, Dict, Discrete, MultiDiscrete

MEAN, STD = np.array([0.3, -1.2]), np.array([0.5, 1.7])
NORMAL = Normal(jnp.asarray(MEAN, jnp.float32), jnp.log(jnp.asarray(STD, jnp.float32)))


def test_categorical_equals_scipy():
    logits = np.array([0.1, -2.0, 1.3])
    probs = np.exp(logits) / np.exp(logits).sum()
    found = Categorical(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(found.entropy(), stats.entropy(probs), rtol=1e-5)
    np.testing.assert_allclose([found.log_prob(jnp.int32(i)) for i in range(3)], np.log(probs), rtol=1e-5)
    assert found.mode() == 2
    drawn = jax.vmap(found.sample)(jax.random.split(jax.random.key(0), 4000))
    assert stats.chisquare(np.bincount(drawn, minlength=3), 4000 * probs).pvalue > 1e-3


def test_choices_are_independent():
    head = Head(Box(-1.0, 1.0, (2,)), "normal"), Head(MultiDiscrete((2, 3)))
    assert [h.size for h in head] == [2, 5]
    numbers = jnp.array([0.2, -0.4, 1.0, 0.0, -1.0])
    found = head[1].distribution(numbers)
    first, second = Categorical(numbers[:2]), Categorical(numbers[2:])
    np.testing.assert_allclose(found.entropy(), first.entropy() + second.entropy(), rtol=1e-6)
    np.testing.assert_array_equal(found.mode(), [0, 0])
    both = first.log_prob(jnp.int32(1)) + second.log_prob(jnp.int32(2))
    np.testing.assert_allclose(found.log_prob(jnp.array([1, 2])), both, rtol=1e-6)
    drawn = jax.vmap(found.sample)(jax.random.split(jax.random.key(0), 6000))
    counts = np.array([[np.sum((drawn[:, 0] == i) & (drawn[:, 1] == j)) for j in range(3)] for i in range(2)])
    assert stats.chi2_contingency(counts).pvalue > 1e-3


def test_normal_equals_scipy():
    x = jnp.array([1.0, 0.4])
    np.testing.assert_allclose(NORMAL.log_prob(x), stats.norm(MEAN, STD).logpdf(x).sum(), rtol=1e-5)
    np.testing.assert_allclose(NORMAL.entropy(), stats.norm(MEAN, STD).entropy().sum(), rtol=1e-5)


def test_tanh_normal_is_a_density_of_its_actions_and_has_its_entropy():
    for mean, std in zip(MEAN, STD, strict=True):
        one = TanhNormal(Normal(jnp.float32([mean]), jnp.log(jnp.float32([std]))))
        x = np.linspace(mean - 12 * std, mean + 12 * std, 20_001)
        log_density = np.asarray(jax.vmap(lambda x, one=one: one.log_prob(x[None]))(jnp.asarray(x, jnp.float32)))
        slope = 1 / np.cosh(np.clip(x, -40, 40)) ** 2  # of the action over the sample
        density = np.exp(log_density) * slope
        np.testing.assert_allclose(integrate.trapezoid(density, x), 1, rtol=1e-4)
        entropy = integrate.trapezoid(-density * log_density, x)
        np.testing.assert_allclose(one.entropy(), entropy, atol=1e-3 if std <= 1 else 2e-2)
    both = TanhNormal(NORMAL)
    drawn = both.sample(jax.random.key(0))
    assert jnp.isfinite(both.log_prob(50 * drawn))


def test_samples_have_the_density():
    drawn = jax.vmap(TanhNormal(NORMAL).sample)(jax.random.split(jax.random.key(1), 4000))
    for i in range(2):
        assert stats.kstest(np.asarray(drawn[:, i]), stats.norm(MEAN[i], STD[i]).cdf).pvalue > 1e-3


def test_actions_are_in_the_units_and_bounds_of_the_space():
    space = Box((-2.0, 0.0), (2.0, 1.0), (2,))
    x = jnp.array([0.5, -9.0])
    np.testing.assert_allclose(Head(space, "normal").to_action(x), [1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(Head(space).to_action(x), [2 * np.tanh(0.5), 0.0], atol=1e-6)
    assert Head(Discrete(3)).to_action(jnp.int32(2)) == 2


def test_several_actions_are_the_choices_of_each_by_name():
    space = Dict({"b": Discrete(2), "a": Dict({"c": MultiDiscrete((3, 4))})})
    head = Head(space)
    assert head.size == 9
    drawn = head.distribution(jnp.zeros((5, 9))).sample(jax.random.key(0))
    action = head.to_action(drawn)
    np.testing.assert_array_equal(action["a"]["c"], drawn[:, :2])
    np.testing.assert_array_equal(action["b"], drawn[:, 2])
    with pytest.raises(OptionError, match="all of them to be discrete"):
        Head(Dict({"a": Discrete(2), "b": Box(-1.0, 1.0, (2,))}))


def test_a_straight_through_sample_is_one_hot_and_has_the_gradient_of_the_softmax():
    logits, key, weights = jnp.array([0.3, -1.0, 2.0, 0.5, 0.1]), jax.random.key(1), jnp.arange(1.0, 6)
    sample, pull = jax.vjp(lambda logits: sample_straight_through(logits, (3, 2), key), logits)
    noisy = logits + jax.random.gumbel(key, logits.shape)
    np.testing.assert_array_equal(
        sample, np.eye(3)[noisy[:3].argmax()].tolist() + np.eye(2)[noisy[3:].argmax()].tolist()
    )
    soft = lambda x: jnp.concatenate([jax.nn.softmax(x[:3]), jax.nn.softmax(x[3:])])  # noqa: E731
    np.testing.assert_allclose(pull(weights)[0], jax.vjp(soft, noisy)[1](weights)[0], rtol=1e-5, atol=1e-7)


def test_refuses_actions_without_bounds():
    with pytest.raises(OptionError, match="a policy needs actions with finite bounds"):
        Head(Box(-np.inf, np.inf, (2,)))
