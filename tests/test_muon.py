"""Muon beside NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.muon import Muon
from evorl.agents.train_state import TrainState
from evorl.errors import OptionError


def orthogonal(x: np.ndarray) -> np.ndarray:
    """Five quintic Newton-Schulz steps, with the coefficients of the post."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x, tall = x / (np.linalg.norm(x) + 1e-8), x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


@pytest.mark.program
def test_ten_steps_are_those_of_numpy():
    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(4, 9)), "tall": rng.normal(size=(7, 3)), "bias": rng.normal(size=5)}
    gradients = [{name: rng.normal(size=x.shape) for name, x in params.items()} for _ in range(10)]
    state = TrainState.create(jax.tree.map(jnp.float32, params), has_target=False, optimizer=Muon(0.9))
    momentum = {name: np.zeros_like(x) for name, x in params.items()}
    for gradient in gradients:
        loss = lambda p, g=gradient: (sum((p[name] * g[name]).sum() for name in g), {})  # noqa: E731
        state, _ = state.apply_gradients(loss, 0.02, jnp.inf)
        for name, g in gradient.items():
            momentum[name] = 0.9 * momentum[name] + g
            direction = g + 0.9 * momentum[name]
            if g.ndim == 2:
                direction = orthogonal(direction) * np.sqrt(max(1, g.shape[1] / g.shape[0]))
            params[name] = params[name] - 0.02 * direction
    for name, x in params.items():
        np.testing.assert_allclose(state.params[name], x, rtol=2e-4, atol=2e-5)


def test_directions_are_orthogonal():
    gradient = jnp.asarray(np.random.default_rng(1).normal(size=(6, 24)), jnp.float32)
    direction, _ = Muon().update(gradient, Muon().init(gradient), gradient)
    singular = np.linalg.svd(direction / 2, compute_uv=False)  # of twice as many rows as columns' root
    assert (singular > 0.6).all()
    assert (singular < 1.3).all()


def test_refuses_no_momentum():
    with pytest.raises(OptionError, match=r"momentum=1.0: must be at least 0 and below 1"):
        Muon(1.0)
