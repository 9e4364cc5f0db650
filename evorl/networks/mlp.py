"""Multilayer perceptrons."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.initializers import Initializer
from jaxtyping import Array, Float

from evorl.errors import require, unknown_name_error


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

    The initial weights of the last layer are scaled by output_scale.
    """

    hidden: tuple[int, ...]
    features: int
    activation: str = "relu"
    layer_norm: bool = False
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        for width in self.hidden:
            x = Dense(width)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
        return Dense(self.features, nn.initializers.variance_scaling(self.output_scale**2, "fan_in", "uniform"))(x)


class DeterministicActor(nn.Module):
    """Actor network with actions in [-1, 1]: the tanh of an MLP."""

    action_size: int
    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch action"]:
        return jnp.tanh(MLP(self.hidden, self.action_size, layer_norm=self.layer_norm)(obs))


class Critics(nn.Module):
    """Independent action-value networks of an observation and an action, with values [*batch, critics]."""

    num_critics: int = 2
    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False

    @nn.compact
    def __call__(
        self, obs: Float[Array, "*batch obs"], action: Float[Array, "*batch action"]
    ) -> Float[Array, "*batch critics"]:
        x = jnp.concatenate([obs, action], axis=-1)
        values = [MLP(self.hidden, 1, layer_norm=self.layer_norm)(x) for _ in range(self.num_critics)]
        return jnp.concatenate(values, axis=-1)
