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
        """Return the statistics of no observations; `like` is one observation or its shapes."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
        return cls(jnp.float32(0), zeros, zeros)

    def update(self, batch: PyTree, mask: Array | None = None) -> "RunningStatistics":
        """Add a batch, leaves [n, ...]; rows where the mask [n] is False do not count."""
        n = jax.tree.leaves(batch)[0].shape[0]
        weight = jnp.ones(n) if mask is None else mask.astype(jnp.float32)
        count = weight.sum()

        def moments(x: Array) -> tuple[Array, Array]:
            w = weight.reshape(-1, *(1,) * (x.ndim - 1))
            x = x if mask is None else jnp.where(w > 0, x, 0)  # masked rows may be NaN
            mean = (w * x).sum(0) / jnp.maximum(count, 1)
            return mean, (w * (x - mean) ** 2).sum(0)

        leaves, treedef = jax.tree.flatten(batch)
        means, squares = zip(*map(moments, leaves), strict=True)
        return self.merge(RunningStatistics(count, treedef.unflatten(means), treedef.unflatten(squares)))

    def merge(self, other: "RunningStatistics") -> "RunningStatistics":
        """Return the statistics of both streams together."""
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
        """Return (obs - mean) / std, clipped to [-clip, clip], leaves [..., *].

        Before the first observation, mean and std are 0 and 1. Integer leaves (discrete observations or
        pixels) and boolean leaves stay unchanged.
        """

        def normalize_leaf(x: Array, mean: Array, squares: Array) -> Array:
            if not jnp.issubdtype(x.dtype, jnp.floating):
                return x
            variance = jnp.where(self.count > 0, squares / jnp.maximum(self.count, 1), 1.0)
            return jnp.clip((x - mean) * jax.lax.rsqrt(variance + 1e-8), -clip, clip)

        return jax.tree.map(normalize_leaf, obs, self.mean, self.sum_of_squares)
