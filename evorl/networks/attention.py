"""Attention of each of n members to the other members."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.networks.mlp import Dense, apply_dense_layers
from evorl.spaces.action_mask import MASKED_LOGIT


class Embedding(nn.Module):
    """Linear layer with leaky ReLU, applied to the concatenation of its inputs."""

    width: int

    @nn.compact
    def __call__(self, *given: Float[Array, "*batch _"]) -> Float[Array, "*batch width"]:
        return apply_dense_layers(jnp.concatenate(given, axis=-1), (self.width,), "leaky_relu")


class Attention(nn.Module):
    """Multi-head attention of each of n members to the other members.

    Each head computes the sum over j of softmax_j(query_i key_j / sqrt d) value_j, with j different from i.
    Queries are linear in `own`; keys and values are computed from `pair`. With n = 1 the output is 0. The
    second output is the mean square of the logits query_i key_j, summed over heads and over i.

    Source: Iqbal & Sha 2019, arXiv:1810.02912, section 3.2.
    """

    heads: int

    @nn.compact
    def __call__(
        self, own: Float[Array, "*batch n width"], pair: Float[Array, "*batch n width"]
    ) -> tuple[Float[Array, "*batch n width"], Float[Array, ""]]:
        n, width = own.shape[-2:]

        def split_heads(x: Array) -> Float[Array, "*batch n heads d"]:
            return x.reshape(*x.shape[:-1], self.heads, width // self.heads)

        def project(name: str, x: Array) -> Array:
            return split_heads(x @ self.param(name, nn.initializers.lecun_uniform(), (width, width)))

        query, key = project("query", own), project("key", pair)
        value = split_heads(nn.leaky_relu(Dense(width, name="value")(pair)))
        others = ~np.eye(n, dtype=bool)
        logits = jnp.einsum("...ihd,...jhd->...hij", query, key)
        scaled = jnp.where(others, logits / np.sqrt(width // self.heads), MASKED_LOGIT)
        weights = jnp.where(others, jax.nn.softmax(scaled), 0)
        heard = jnp.einsum("...hij,...jhd->...ihd", weights, value).reshape(own.shape)
        rows = max(1, logits.size // (self.heads * n * n)) * max(1, n - 1)
        return heard, jnp.where(others, logits**2, 0).sum() / rows
