import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import SAC, TD3
from evorl.agents.dqn import QNetwork
from evorl.networks.features import features, num_features
from evorl.networks.mlp import MLP, Critics, DeterministicActor
from evorl.spaces import Box, Dict, Discrete


def test_mlp_with_layer_norm_equals_numpy(key):
    network, x = MLP((5, 3), 2, layer_norm=True), jax.random.normal(key, (7, 4))
    params = jax.jit(network.init)(key, x)
    p = jax.tree.map(np.asarray, params["params"])
    h = np.asarray(x)
    for i in range(2):
        h = h @ p[f"Dense_{i}"]["kernel"] + p[f"Dense_{i}"]["bias"]
        h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
        h = np.maximum(h * p[f"LayerNorm_{i}"]["scale"] + p[f"LayerNorm_{i}"]["bias"], 0)
    expected = h @ p["Dense_2"]["kernel"] + p["Dense_2"]["bias"]
    np.testing.assert_allclose(network.apply(params, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [TD3, SAC])
def test_initial_weights_of_actors_and_critics_are_small(kind, key):
    """Compare the largest weights with section 7 of Lillicrap et al. 2016; larger ones saturate the tanh of actors."""
    agent = kind(hidden=(64, 64), observation_space=Box(-1.0, 1.0, (16,)), action_space=Box(-1.0, 1.0, (16,)))
    state = agent.init(key)
    kernels = [x for x in jax.tree.leaves((state.actor.params, state.critic.params)) if x.ndim == 2]
    largest = [float(jnp.abs(x).max() * np.sqrt(len(x))) for x in kernels]
    assert all(0.9 < x <= 1 for x in largest)


def test_a_dueling_network_normalizes_each_hidden_layer(key):
    network = QNetwork(3, (8, 8), layer_norm=True, dueling=True)
    params = network.init(key, 100 * jnp.ones((1, 4)))["params"]
    assert {"trunk_norm"} <= set(params)
    a, b = (network.apply({"params": params}, scale * jnp.arange(4.0)[None]) for scale in (1.0, 1e3))
    np.testing.assert_allclose(a, b, rtol=1e-3)  # the first layer is normalized, so the scale of inputs has no effect


def test_actor_is_bounded_and_critics_are_independent(key):
    obs, action = 100 * jax.random.normal(key, (6, 4)), jnp.zeros((6, 2))
    actor, critics = DeterministicActor(2, (8,)), Critics(3, (8,))
    assert jnp.abs(actor.apply(actor.init(key, obs), obs)).max() <= 1
    values = critics.apply(critics.init(key, obs, action), obs, action)
    assert values.shape == (6, 3)
    assert not np.allclose(values[:, 0], values[:, 1])


def test_features_of_several_observations_are_side_by_side_by_name():
    space = Dict({"pixels": Box(0, 255, (1, 2), "uint8"), "choice": Discrete(3), "box": Box(-1.0, 1.0, (2,))})
    obs = {"pixels": jnp.array([[51, 255]], jnp.uint8), "choice": jnp.int32(1), "box": jnp.array([0.5, -1.0])}
    np.testing.assert_allclose(features(space, obs), [0.5, -1, 0, 1, 0, 0.2, 1.0])
    assert num_features(space) == 7
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, 3, *x.shape)), obs)
    assert features(space, batch).shape == (4, 3, 7)
