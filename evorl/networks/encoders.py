"""Image encoders."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require, require_int
from evorl.networks.features import features, scale_pixels
from evorl.networks.low_rank import apply_kernel
from evorl.networks.mlp import ACTIVATIONS, Dense, apply_dense_layers, check_layers
from evorl.spaces import Box, Simple, Space, flatten, leaf_spaces

MAX_PATCH_SIZE = 64  # patch size up to which, on a CPU, a product with all patches is as fast as a convolution


class Convolution(nn.Module):
    """Convolution without padding, with square kernels stored as a matrix [size^2 channels, features]."""

    features: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "*batch height width channels"]) -> Float[Array, "*batch rows columns features"]:
        batch, (height, width, channels) = x.shape[:-3], x.shape[-3:]
        fan_in = self.size**2 * channels
        kernel = self.param("kernel", nn.initializers.lecun_uniform(), (fan_in, self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        if fan_in <= MAX_PATCH_SIZE and jax.default_backend() == "cpu":
            places = [range(0, extent - self.size + 1, self.stride) for extent in (height, width)]
            squares = [
                x[..., i : i + places[0][-1] + 1 : self.stride, j : j + places[1][-1] + 1 : self.stride, :]
                for i in range(self.size)
                for j in range(self.size)
            ]
            return jnp.concatenate(squares, axis=-1) @ kernel + bias
        x = x.reshape(math.prod(batch), height, width, channels)
        layout = ("NHWC", "HWIO", "NHWC")

        def convolve(x: Array, kernel: Array, preferred_element_type: Any = None) -> Array:
            kernel = kernel.reshape(self.size, self.size, channels, -1)
            strides = (self.stride, self.stride)
            return jax.lax.conv_general_dilated(
                x, kernel, strides, "VALID", dimension_numbers=layout, preferred_element_type=preferred_element_type
            )

        y = apply_kernel(convolve, x, kernel, axes=3)
        return y.reshape(*batch, *y.shape[1:]) + bias


class CNN(nn.Module):
    """Convolutional encoder of the images in an observation, followed by linear layers.

    An image is a Box [height, width, channels]. Several images [count, height, width, channels], as
    FrameStack makes them, are stacked along the channels. The features of all parts of the observation are
    concatenated before the linear layers. Convolutions have no padding; layer i has channels[i] features,
    kernels of sizes[i] x sizes[i], and stride strides[i].

    Args:
        channels: Number of features of each convolution.
        sizes: Kernel size of each convolution, in pixels.
        strides: Stride of each convolution, in pixels.
        dense: Widths of the linear layers after the convolutions, each with activation.
        embedding: Size of the learned embedding of a Discrete part; 0 for one-hot vectors.
        activation: Name of the activation function: "relu", "leaky_relu", "tanh", "swish", "elu" or "gelu".

    Raises:
        OptionError: If an option is invalid.
    """

    channels: Sequence[int] = (16,)
    sizes: Sequence[int] = (3,)
    strides: Sequence[int] = (1,)
    dense: Sequence[int] = ()
    embedding: int = 0
    activation: str = "relu"

    def __post_init__(self) -> None:
        for name in ("channels", "sizes", "strides"):
            given = getattr(self, name)
            wanted = f"must be {len(self.channels)} whole numbers, at least 1"
            require(len(given) == len(self.channels) and all(n >= 1 for n in given), name, list(given), wanted)
        require_int("embedding", self.embedding, 0)
        check_layers(tuple(self.dense), self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, space: Space, obs: Any) -> Float[Array, "*batch n"]:
        """Return the features of observations, shape [*batch, n].

        Raises:
            OptionError: If the space has no image, or if an image is smaller than a kernel.
        """
        if not has_image(space):
            raise OptionError("encoder=CNN: needs image observations, a Box [height, width, channels]")
        parts = zip(leaf_spaces(space), flatten(space, obs), strict=True)
        x = jnp.concatenate([self._encode_leaf(leaf, part) for leaf, part in parts], axis=-1)
        return apply_dense_layers(x, self.dense, self.activation)

    def _encode_leaf(self, space: Simple, obs: Array) -> Float[Array, "*batch n"]:
        if not isinstance(space, Box):
            x = features(space, obs)
            return Dense(self.embedding)(x) if self.embedding else x
        if not _is_image(space):
            return features(space, obs)
        x = scale_pixels(space, obs)
        if len(space.shape) == 4:
            x = jnp.moveaxis(x, -4, -2).reshape(*x.shape[:-4], *x.shape[-3:-1], -1)
        for width, size, stride in zip(self.channels, self.sizes, self.strides, strict=True):
            extent = x.shape[-3:-1]
            fits = (
                f"must be at most {min(extent)}: the layer gets {extent[0]} x {extent[1]} of images {list(space.shape)}"
            )
            require(size <= min(extent), "sizes", list(self.sizes), fits)
            x = ACTIVATIONS[self.activation](Convolution(width, size, stride)(x))
        return x.reshape(*x.shape[:-3], -1)


def has_image(space: Space) -> bool:
    """Return whether a part of the observations is an image or a stack of images."""
    return any(_is_image(leaf) for leaf in leaf_spaces(space))


def _is_image(space: Simple) -> bool:
    return isinstance(space, Box) and len(space.shape) in (3, 4)
