"""Running mean and variance of observations."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree


@struct.dataclass
class RunningStatistics:
    """Count, mean and sum of squared deviations of a stream of pytrees (Welford 1962; Chan et al. 1979 for merging)."""

    count: Float[Array, ""]
    mean: PyTree
    sum_of_squares: PyTree

    @classmethod
    def empty(cls, like: PyTree) -> "RunningStatistics":
        """No observation yet; like is one observation or its shapes."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
        return cls(jnp.float32(0), zeros, zeros)

    def update(self, batch: PyTree, mask: Array | None = None) -> "RunningStatistics":
        """Takes in a batch, leaves [n, ...]; rows where ~mask [n] do not count."""
        n = jax.tree.leaves(batch)[0].shape[0]
        weight = jnp.ones(n) if mask is None else mask.astype(jnp.float32)
        count = weight.sum()

        def moments(x: Array) -> tuple[Array, Array]:
            w = weight.reshape(-1, *(1,) * (x.ndim - 1))
            x = x if mask is None else jnp.where(w > 0, x, 0)  # what does not count may be NaN
            mean = (w * x).sum(0) / jnp.maximum(count, 1)
            return mean, (w * (x - mean) ** 2).sum(0)

        leaves, treedef = jax.tree.flatten(batch)
        means, squares = zip(*map(moments, leaves), strict=True)
        return self.merge(RunningStatistics(count, treedef.unflatten(means), treedef.unflatten(squares)))

    def merge(self, other: "RunningStatistics") -> "RunningStatistics":
        """The statistics of both streams together."""
        count = self.count + other.count
        share = other.count / jnp.maximum(count, 1)
        mean = jax.tree.map(lambda a, b: a + (b - a) * share, self.mean, other.mean)
        squares = jax.tree.map(
            lambda sa, sb, a, b: sa + sb + (b - a) ** 2 * self.count * share,
            self.sum_of_squares,
            other.sum_of_squares,
            self.mean,
            other.mean,
        )
        return RunningStatistics(count, mean, squares)

    def normalize(self, obs: PyTree, clip: float = 10.0) -> PyTree:
        """(obs - mean) / std, clipped; leaves [..., *]; the identity (clipped) before the first observation.

        Whole numbers, which are choices or pixels, and what is true or not stay as they are.
        """

        def normalize_leaf(x: Array, mean: Array, squares: Array) -> Array:
            if not jnp.issubdtype(x.dtype, jnp.floating):
                return x
            variance = jnp.where(self.count > 0, squares / jnp.maximum(self.count, 1), 1.0)
            return jnp.clip((x - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

        return jax.tree.map(normalize_leaf, obs, self.mean, self.sum_of_squares)
