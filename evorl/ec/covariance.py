"""Covariances that CMA-ES adapts: how steps are drawn from them, and measured by them."""

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.ec.flatten import sum_weighted

Steps: TypeAlias = Float[Array, "members n"]
EXACT = jax.lax.Precision.HIGHEST  # a GPU would round factors of a product to ten bits


@runtime_checkable
class Covariance(Protocol):
    """A covariance C as an array, and the transpose of a factor A of it, C = A A^T, as another of the same shape."""

    def identity(self, n: int) -> Array:
        """That of n independent numbers with variance 1, and its own factor."""
        ...

    def learning_speedup(self, n: int) -> float:
        """How many times as fast it learns as a full covariance."""
        ...

    def factorization_interval(self, n: int, rate: Array) -> Array:
        """Generations between two factors, where it learns at a rate."""
        ...

    def transform_noise(self, factor: Array, noise: Steps) -> Steps:
        """A z of each row of noise."""
        ...

    def whiten(self, factor: Array, steps: Steps) -> Steps:
        """A^-1 y of each step."""
        ...

    def sum_outer_products(self, weights: Array, steps: Steps) -> Array:
        """The sum of w y y^T over steps."""
        ...

    def factorize(self, covariance: Array, old: Array, due: Array) -> Array:
        """The transpose of A where due, else the old one."""
        ...

    def variances(self, covariance: Array) -> Array:
        """The diagonal of C, [n]."""
        ...

    def factor_diagonal(self, factor: Array) -> Array:
        """Numbers [n] whose extremes tell the condition."""
        ...


@dataclass(frozen=True)
class FullCovariance:
    """n x n, factored by Cholesky (Krause, Arbones & Igel 2016) after C has changed by about `lag` / n."""

    lag: float = 0.5

    def identity(self, n: int) -> Float[Array, "n n"]:
        return jnp.eye(n)

    def learning_speedup(self, n: int) -> float:
        del n
        return 1.0

    def factorization_interval(self, n: int, rate: Float[Array, ""]) -> Float[Array, ""]:
        """Hansen 2016, appendix B.2, where lag is 0.1."""
        return jnp.maximum(jnp.ceil(self.lag / (n * rate)), 1.0)

    def transform_noise(self, factor: Float[Array, "n n"], noise: Steps) -> Steps:
        return jnp.matmul(noise, factor, precision=EXACT)

    def whiten(self, factor: Float[Array, "n n"], steps: Steps) -> Steps:
        return solve_triangular(factor.T, steps.T, lower=True).T

    def sum_outer_products(self, weights: Float[Array, " members"], steps: Steps) -> Float[Array, "n n"]:
        return jnp.matmul((weights[:, None] * steps).T, steps, precision=EXACT)

    def factorize(
        self, covariance: Float[Array, "n n"], old: Float[Array, "n n"], due: Bool[Array, ""]
    ) -> Float[Array, "n n"]:
        """Cholesky's, of the lower triangle; the old one where the covariance is not positive definite."""

        def decompose(i: Array, old: Array) -> Array:
            here, _ = jax.lax.optimization_barrier((covariance, i))  # else XLA moves it out, and it runs every time
            new = jax.lax.linalg.cholesky(here.T, symmetrize_input=False).T
            return jnp.where(jnp.isfinite(new[-1, -1]), new, old)

        return tree.masked_fori_loop(due.astype(jnp.int32), decompose, old)

    def variances(self, covariance: Float[Array, "n n"]) -> Float[Array, " n"]:
        return jnp.diagonal(covariance)

    def factor_diagonal(self, factor: Float[Array, "n n"]) -> Float[Array, " n"]:
        return jnp.diagonal(factor)


@dataclass(frozen=True)
class DiagonalCovariance:
    """Variances alone, learned (n + 2) / 3 times as fast (Ros & Hansen 2008, equation 7): time and memory are O(n)."""

    def identity(self, n: int) -> Float[Array, " n"]:
        return jnp.ones(n)

    def learning_speedup(self, n: int) -> float:
        return (n + 2) / 3

    def factorization_interval(self, n: int, rate: Float[Array, ""]) -> Float[Array, ""]:
        del n
        return jnp.ones_like(rate)

    def transform_noise(self, factor: Float[Array, " n"], noise: Steps) -> Steps:
        return noise * factor

    def whiten(self, factor: Float[Array, " n"], steps: Steps) -> Steps:
        return steps / factor

    def sum_outer_products(self, weights: Float[Array, " members"], steps: Steps) -> Float[Array, " n"]:
        return sum_weighted(weights, steps**2)

    def factorize(
        self, covariance: Float[Array, " n"], old: Float[Array, " n"], due: Bool[Array, ""]
    ) -> Float[Array, " n"]:
        del due
        return jnp.where(covariance > 0, jnp.sqrt(covariance), old)

    def variances(self, covariance: Float[Array, " n"]) -> Float[Array, " n"]:
        return covariance

    def factor_diagonal(self, factor: Float[Array, " n"]) -> Float[Array, " n"]:
        return factor
