"""Mixers, which combine the values of a group's members into a joint value."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import require_int
from evorl.networks.mlp import MLP, check_layers


@runtime_checkable
class Mixer(Protocol):
    """Flax module that combines members' values into a joint value, which does not decrease in any of them.

    Each member can therefore choose its action by its own value.
    """

    def __call__(
        self, values: Float[Array, "*batch members"], state: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch"]:
        """Return the joint value of all members.

        Args:
            values: Values of the members, shape [*batch, members].
            state: Features of the environment's state, shape [*batch, features].

        Returns:
            Joint values, shape [*batch].
        """
        ...


class SumMixer(nn.Module):
    """Sum of the members' values, independent of the state (VDN).

    Source: Sunehag et al. 2017, arXiv:1706.05296.
    """

    @nn.compact
    def __call__(
        self, values: Float[Array, "*batch members"], state: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch"]:
        del state
        return values.sum(-1)


SUM = SumMixer()


class MonotonicMixer(nn.Module):
    """Monotonic mixing network of QMIX: |w(s)|' elu(|W(s)|' values + b(s)) + V(s).

    Each of w, W, b and V is an MLP of the state s.

    Args:
        width: Width of the hidden layer of the mixing network.
        hidden: Widths of the hidden layers of the MLPs of the state.

    Raises:
        OptionError: If a width is not a whole number of at least 1.

    Source: Rashid et al. 2018, arXiv:1803.11485, figure 2.
    """

    width: int = 32
    hidden: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        require_int("width", self.width)
        check_layers(self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, values: Float[Array, "*batch members"], state: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch"]:
        def apply_mlp(name: str, size: int) -> Array:
            return MLP(self.hidden, size, name=name)(state)

        first = jnp.abs(apply_mlp("first", values.shape[-1] * self.width)).reshape(*values.shape, self.width)
        hidden = nn.elu((values[..., None] * first).sum(-2) + apply_mlp("bias", self.width))
        return (hidden * jnp.abs(apply_mlp("second", self.width))).sum(-1) + apply_mlp("value", 1)[..., 0]
