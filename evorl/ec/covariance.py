"""Representations of the covariance matrix of CMA-ES."""

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
EXACT = jax.lax.Precision.HIGHEST  # by default, a GPU rounds the factors of a product to 10 bits


@runtime_checkable
class Covariance(Protocol):
    """Representation of the covariance matrix C of CMA-ES and of a factor A with C = A A^T.

    C is stored as an array. `factor` is the transpose of A, an array of the same shape.
    """

    def identity(self, n: int) -> Array:
        """Return the identity matrix, which is its own factor.

        Args:
            n: Number of parameters.
        """
        ...

    def learning_speedup(self, n: int) -> float:
        """Return the factor on the learning rates c_1 and c_mu, relative to a full covariance matrix.

        Args:
            n: Number of parameters.
        """
        ...

    def factorization_interval(self, n: int, rate: Array) -> Array:
        """Return the number of generations between two factorizations.

        Args:
            n: Number of parameters.
            rate: Learning rate of the covariance, c_1 + c_mu.
        """
        ...

    def transform_noise(self, factor: Array, noise: Steps) -> Steps:
        """Return A z for each row z of noise.

        Args:
            factor: Transpose of A.
            noise: Standard normal numbers, shape [members, n].

        Returns:
            Samples with covariance C, shape [members, n].
        """
        ...

    def whiten(self, factor: Array, steps: Steps) -> Steps:
        """Return A^-1 y for each step y.

        Args:
            factor: Transpose of A.
            steps: Steps, shape [members, n].

        Returns:
            The whitened steps, shape [members, n].
        """
        ...

    def sum_outer_products(self, weights: Array, steps: Steps) -> Array:
        """Return the weighted sum of the outer products y y^T of the steps.

        Args:
            weights: Weights of the steps, shape [members].
            steps: Steps y, shape [members, n].

        Returns:
            The sum, in the shape of C.
        """
        ...

    def factorize(self, covariance: Array, old: Array, due: Array) -> Array:
        """Return the transpose of the factor A of C if it is due, else the old factor.

        Args:
            covariance: Covariance C.
            old: Transpose of the previous factor.
            due: Whether to factorize, shape [].
        """
        ...

    def variances(self, covariance: Array) -> Array:
        """Return the diagonal of C, shape [n].

        Args:
            covariance: Covariance C.
        """
        ...

    def factor_diagonal(self, factor: Array) -> Array:
        """Return the diagonal of the factor, shape [n].

        The squared ratio of its largest to its smallest entry estimates the condition number of C.

        Args:
            factor: Transpose of A.
        """
        ...


@dataclass(frozen=True)
class FullCovariance:
    """Full covariance matrix, shape [n, n], with a Cholesky factor.

    Args:
        lag: The matrix is factorized every lag / (n * rate) generations. Between two factorizations it
            changes by about lag / n.

    Source: Krause, Arbones & Igel 2016.
    """

    lag: float = 0.5

    def identity(self, n: int) -> Float[Array, "n n"]:
        """Return the identity matrix, shape [n, n]."""
        return jnp.eye(n)

    def learning_speedup(self, n: int) -> float:
        """Return 1."""
        del n
        return 1.0

    def factorization_interval(self, n: int, rate: Float[Array, ""]) -> Float[Array, ""]:
        """Return lag / (n * rate), rounded up, at least 1 (Hansen 2016, appendix B.2, where lag is 0.1)."""
        return jnp.maximum(jnp.ceil(self.lag / (n * rate)), 1.0)

    def transform_noise(self, factor: Float[Array, "n n"], noise: Steps) -> Steps:
        """Return A z for each row z of noise, in full precision."""
        return jnp.matmul(noise, factor, precision=EXACT)

    def whiten(self, factor: Float[Array, "n n"], steps: Steps) -> Steps:
        """Return A^-1 y for each step y, by a triangular solve."""
        return solve_triangular(factor.T, steps.T, lower=True).T

    def sum_outer_products(self, weights: Float[Array, " members"], steps: Steps) -> Float[Array, "n n"]:
        """Return the weighted sum of the outer products y y^T of the steps, shape [n, n], in full precision."""
        return jnp.matmul((weights[:, None] * steps).T, steps, precision=EXACT)

    def factorize(
        self, covariance: Float[Array, "n n"], old: Float[Array, "n n"], due: Bool[Array, ""]
    ) -> Float[Array, "n n"]:
        """Return the Cholesky factor if it is due, computed from one triangle of C.

        The old factor is kept if C is not positive definite.
        """

        def decompose(i: Array, old: Array) -> Array:
            here, _ = jax.lax.optimization_barrier((covariance, i))  # else XLA hoists it, and it always runs
            new = jax.lax.linalg.cholesky(here.T, symmetrize_input=False).T
            return jnp.where(jnp.isfinite(new[-1, -1]), new, old)

        return tree.masked_fori_loop(due.astype(jnp.int32), decompose, old)

    def variances(self, covariance: Float[Array, "n n"]) -> Float[Array, " n"]:
        """Return the diagonal of C, shape [n]."""
        return jnp.diagonal(covariance)

    def factor_diagonal(self, factor: Float[Array, "n n"]) -> Float[Array, " n"]:
        """Return the diagonal of the factor, shape [n]."""
        return jnp.diagonal(factor)


@dataclass(frozen=True)
class DiagonalCovariance:
    """Diagonal covariance matrix, stored as n variances; time and memory are O(n).

    Its learning rates are (n + 2) / 3 times those of a full covariance matrix.

    Source: Ros & Hansen 2008, equation 7.
    """

    def identity(self, n: int) -> Float[Array, " n"]:
        """Return n variances of 1."""
        return jnp.ones(n)

    def learning_speedup(self, n: int) -> float:
        """Return (n + 2) / 3."""
        return (n + 2) / 3

    def factorization_interval(self, n: int, rate: Float[Array, ""]) -> Float[Array, ""]:
        """Return 1: the standard deviations are updated in every generation."""
        del n
        return jnp.ones_like(rate)

    def transform_noise(self, factor: Float[Array, " n"], noise: Steps) -> Steps:
        """Multiply each row of noise by the standard deviations."""
        return noise * factor

    def whiten(self, factor: Float[Array, " n"], steps: Steps) -> Steps:
        """Divide each step by the standard deviations."""
        return steps / factor

    def sum_outer_products(self, weights: Float[Array, " members"], steps: Steps) -> Float[Array, " n"]:
        """Return the weighted sum of the squared steps, shape [n]."""
        return sum_weighted(weights, steps**2)

    def factorize(
        self, covariance: Float[Array, " n"], old: Float[Array, " n"], due: Bool[Array, ""]
    ) -> Float[Array, " n"]:
        """Return the standard deviations; an entry keeps its old value if its variance is not positive."""
        del due
        return jnp.where(covariance > 0, jnp.sqrt(covariance), old)

    def variances(self, covariance: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the variances themselves, shape [n]."""
        return covariance

    def factor_diagonal(self, factor: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the standard deviations, shape [n]."""
        return factor
