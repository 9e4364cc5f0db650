"""Encoders of images against convolutions by NumPy, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.maze import Maze
from evorl.errors import OptionError
from evorl.networks import encoders
from evorl.networks.encoders import CNN, Convolution
from evorl.networks.network import Encoder
from evorl.spaces import Box, Dict, Discrete, to_shape_structs


def convolved(x, kernel, bias, size, stride):
    """Each place in its turn."""
    rows, columns = ((extent - size) // stride + 1 for extent in x.shape[1:3])
    y = np.zeros((len(x), rows, columns, kernel.shape[1]))
    for i in range(rows):
        for j in range(columns):
            square = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, i, j] = square.reshape(len(x), -1) @ kernel + bias
    return y


@pytest.mark.parametrize("few", [encoders.MAX_PATCH_SIZE, 0], ids=["product", "convolution"])
@pytest.mark.parametrize(("shape", "size", "stride"), [((5, 5, 3), 3, 1), ((9, 8, 2), 4, 2), ((7, 10, 1), 3, 3)])
def test_a_convolution_is_its_sums(monkeypatch, few, shape, size, stride):
    monkeypatch.setattr(encoders, "MAX_PATCH_SIZE", few)
    x = jax.random.normal(jax.random.key(0), (6, *shape))
    layer = Convolution(4, size, stride)
    params = jax.jit(layer.init)(jax.random.key(1), x)
    params = jax.tree.map(lambda p: p + np.float32(0.1), params)
    wanted = convolved(
        np.asarray(x), *(np.asarray(params["params"][name]) for name in ("kernel", "bias")), size, stride
    )
    np.testing.assert_allclose(layer.apply(params, x), wanted, atol=1e-5)
    by_axes = layer.apply(params, x.reshape(2, 3, *shape))
    np.testing.assert_allclose(by_axes.reshape(wanted.shape), wanted, atol=1e-5)
    np.testing.assert_allclose(layer.apply(params, x[0]), wanted[0], atol=1e-5)


@pytest.mark.program
def test_a_student_of_mazes_has_the_features_of_minimax():
    """3 x 3 places of 16 features and 5 numbers of a direction, which are a row of a table."""
    env, encoder = Maze(), CNN(embedding=5)
    assert isinstance(encoder, Encoder)
    _, obs = env.reset(jax.random.key(0), env.default_params)
    params = encoder.init(jax.random.key(1), env.observation_space, obs)
    x = encoder.apply(params, env.observation_space, obs)
    assert x.shape == (149,)
    turned = encoder.apply(params, env.observation_space, obs | {"direction": (obs["direction"] + 1) % 4})
    assert (np.asarray(x != turned)).sum() == 5
    table = params["params"]["Dense_0"]
    direction = np.flatnonzero(np.asarray(x != turned))
    np.testing.assert_allclose(x[direction], table["kernel"][obs["direction"]] + table["bias"], atol=1e-6)


def test_pixels_are_fractions_and_frames_are_channels():
    several = Box(0, 255, (3, 4, 4, 1), "uint8")
    frames = jax.random.randint(jax.random.key(0), (3, 4, 4, 1), 0, 256).astype(jnp.uint8)
    encoder = CNN(channels=(2,), sizes=(2,))
    params = encoder.init(jax.random.key(1), several, frames)
    assert params["params"]["Convolution_0"]["kernel"].shape == (2 * 2 * 3, 2)
    vectorized = Box(0, 255, (4, 4, 3), "uint8")
    as_channels = jnp.moveaxis(frames[..., 0], 0, -1)
    np.testing.assert_array_equal(
        encoder.apply(params, several, frames), encoder.apply(params, vectorized, as_channels)
    )
    as_fractions = encoder.apply(params, Box(0.0, 1.0, (4, 4, 3)), as_channels / jnp.float32(255))
    np.testing.assert_allclose(encoder.apply(params, several, frames), as_fractions, rtol=1e-6)


@pytest.mark.parametrize(("options", "features"), [
    ({"dense": (128,)}, 128),
    ({"channels": (32, 64, 64), "sizes": (8, 4, 3), "strides": (4, 2, 1), "dense": (512,)}, 512),
    ({"channels": (32, 64, 64), "sizes": (8, 4, 3), "strides": (4, 2, 1)}, 7 * 7 * 64),
])  # fmt: skip
def test_presets_have_the_sizes_of_their_papers(options, features):
    space = Box(0, 255, (84, 84, 4), "uint8")
    encoder = CNN(**options)
    obs = jnp.zeros((2, *space.shape), jnp.uint8)
    x = jax.eval_shape(lambda: encoder.init_with_output(jax.random.key(0), space, obs)[0])
    assert x.shape == (2, features)


@pytest.mark.parametrize(("space", "options", "message"), [
    (Box(0.0, 1.0, (5, 5, 3)), {"sizes": (6,)}, r"sizes=\[6\]: must be at most 5: the layer gets 5 x 5 .* \[5, 5, 3\]"),
    (Box(0.0, 1.0, (5, 5, 3)), {"channels": (2, 2), "sizes": (3, 4), "strides": (1, 1)}, "at most 3: the layer gets 3"),
    (Dict({"a": Discrete(3), "b": Box(0.0, 1.0, (4,))}), {}, r"encoder=CNN: needs image observations, a Box \[hei"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(space, options, message):
    obs = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), to_shape_structs(space))
    with pytest.raises(OptionError, match=message):
        CNN(**options).init(jax.random.key(0), space, obs)


@pytest.mark.parametrize(("options", "message"), [
    ({"sizes": (3, 3)}, r"sizes=\[3, 3\]: must be 1 whole numbers, at least 1"),
    ({"strides": (0,)}, r"strides=\[0\]: must be 1 whole numbers, at least 1"),
    ({"embedding": -1}, "embedding=-1: must not be negative"),
    ({"activation": "rely"}, "unknown activation rely; did you mean relu?"),
])  # fmt: skip
def test_layers_that_cannot_be_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        CNN(**options)
