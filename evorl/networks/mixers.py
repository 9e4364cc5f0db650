"""Mixers: from the values of the members of a group to that of all of them together."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import require_int
from evorl.networks.mlp import MLP, check_layers


@runtime_checkable
class Mixer(Protocol):
    """A module of flax that never falls where a member's value grows, so that each may choose by its own."""

    def __call__(
        self, values: Float[Array, "*batch members"], state: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch"]:
        """The value of all in a state."""
        ...


class SumMixer(nn.Module):
    """Their sum, whatever the state (VDN; Sunehag et al. 2017, arXiv:1706.05296)."""

    @nn.compact
    def __call__(
        self, values: Float[Array, "*batch members"], state: Float[Array, "*batch features"]
    ) -> Float[Array, "*batch"]:
        del state
        return values.sum(-1)


SUM = SumMixer()


class MonotonicMixer(nn.Module):
    """|w(s)|' elu(|W(s)|' values + b(s)) + V(s), each of w, W, b and V an MLP of the state s.

    QMIX (Rashid et al. 2018, arXiv:1803.11485, figure 2).
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
