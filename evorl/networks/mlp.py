"""Multilayer perceptrons."""

from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.initializers import Initializer
from jaxtyping import Array, Float

from evorl.errors import require, unknown_name_error

SMALL_WEIGHTS = 3**-0.5  # weight_scale of weights in +-1 / sqrt(inputs), as in Lillicrap et al. 2016, arXiv:1509.02971


class Dense(nn.Module):
    """Linear layer, computed as x @ kernel so that a LowRankKernel can replace the kernel."""

    features: int
    kernel_init: Initializer = nn.initializers.lecun_uniform()

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        return x @ kernel + self.param("bias", nn.initializers.zeros, (self.features,))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "leaky_relu": nn.leaky_relu,
    "tanh": nn.tanh,
    "swish": nn.swish,
    "elu": nn.elu,
    "gelu": nn.gelu,
}


def apply_dense_layers(
    x: Float[Array, "*batch inputs"], widths: Sequence[int], activation: str
) -> Float[Array, "*batch n"]:
    """Apply linear layers, each with activation, as submodules of the calling module."""
    for width in widths:
        x = ACTIVATIONS[activation](Dense(width)(x))
    return x


def check_layers(hidden: tuple[int, ...], activation: str = "relu", name: str = "hidden") -> None:
    """Raise OptionError if a width or the name of the activation is invalid."""
    widths = all(isinstance(width, int) and width >= 1 for width in hidden)
    require(widths, name, list(hidden), "widths must be whole numbers, at least 1")
    if activation not in ACTIVATIONS:
        raise unknown_name_error("activation", activation, ACTIVATIONS)


class MLP(nn.Module):
    """Multilayer perceptron: hidden layers with optional layer normalization and activation, then a linear layer.

    The initial weights of a layer are uniform with the variance weight_scale^2 / inputs, and those of the last
    layer also scaled by output_scale.
    """

    hidden: tuple[int, ...]
    features: int
    activation: str = "relu"
    layer_norm: bool = False
    output_scale: float = 1.0
    weight_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        for width in self.hidden:
            x = Dense(width, _scaled_uniform(self.weight_scale))(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
        return Dense(self.features, _scaled_uniform(self.weight_scale * self.output_scale))(x)


def _scaled_uniform(scale: float) -> Initializer:
    return nn.initializers.variance_scaling(scale**2, "fan_in", "uniform")


class DeterministicActor(nn.Module):
    """Actor network with actions in [-1, 1]: the tanh of an MLP, whose initial weights are small."""

    action_size: int
    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch action"]:
        body = MLP(self.hidden, self.action_size, layer_norm=self.layer_norm, weight_scale=SMALL_WEIGHTS)
        return jnp.tanh(body(obs))


class Critics(nn.Module):
    """Independent action-value networks of an observation and an action, with values [*batch, critics]."""

    num_critics: int = 2
    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    weight_scale: float = 1.0

    @nn.compact
    def __call__(
        self, obs: Float[Array, "*batch obs"], action: Float[Array, "*batch action"]
    ) -> Float[Array, "*batch critics"]:
        x = jnp.concatenate([obs, action], axis=-1)
        body = partial(MLP, self.hidden, 1, layer_norm=self.layer_norm, weight_scale=self.weight_scale)
        values = [body()(x) for _ in range(self.num_critics)]
        return jnp.concatenate(values, axis=-1)
