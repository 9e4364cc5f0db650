"""Attention of each of several to all others."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.networks.mlp import Dense, apply_dense_layers
from evorl.spaces.action_mask import MASKED_LOGIT


class Embedding(nn.Module):
    """A linear layer with activation, of what it is given side by side."""

    width: int

    @nn.compact
    def __call__(self, *given: Float[Array, "*batch _"]) -> Float[Array, "*batch width"]:
        return apply_dense_layers(jnp.concatenate(given, axis=-1), (self.width,), "leaky_relu")


class Attention(nn.Module):
    """What each of n hears of the others: per head the sum over j of softmax_j(query_i key_j / sqrt d) value_j.

    Queries are of own, keys and values of pair (Iqbal & Sha 2019, arXiv:1810.02912, section 3.2). One who is alone
    hears nothing. Beside it the mean square of the logits query_i key_j, summed over heads and over who hears.
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
