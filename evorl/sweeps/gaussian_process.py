"""Gaussian process regression in NumPy on the unit cube: Matern 3/2 (ARD), linear, bias and noise terms."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri  # pyright: ignore[reportAttributeAccessIssue]
from scipy.optimize import minimize

ROOT_3 = np.sqrt(3.0)
JITTER = 1e-8
INITIAL_VARIANCES = {"matern": 1.0, "linear": 1.0, "bias": 1.0, "noise": 1e-2}
MAX_FIT_POINTS = 300  # maximum number of points to which the kernel parameters are fitted
INITIAL_LENGTH = 0.5  # length scale: half of the unit cube
LOG_BOUNDS = (-9.0, 5.0)  # of all log parameters: variances from 1e-4, length scales up to 150

Vector = np.ndarray


@dataclass(frozen=True)
class GaussianProcess:
    """Gaussian process on the unit cube, conditioned on n noisy observations.

    The kernel is k(a, b) = matern (1 + sqrt(3) r) exp(-sqrt(3) r) + linear a.b + bias. Here, r is the
    distance between a and b, with each coordinate divided by its length scale (Rasmussen and Williams 2006,
    equations 4.17 and 5.9).
    """

    x: Float[Vector, "n d"]
    y: Float[Vector, " n"]
    log_params: Float[Vector, " p"]  # logarithms of matern, linear, bias, noise and the d length scales

    @classmethod
    def fit(cls, x: Float[Vector, "n d"], y: Float[Vector, " n"]) -> "GaussianProcess":
        """Fit the kernel parameters by maximum a posteriori estimation, with L-BFGS from one start.

        The prior of their logarithms is normal around INITIAL_VARIANCES and INITIAL_LENGTH, with standard
        deviation 1, or 0.5 for the noise (HEBO, Cowen-Rivers et al. 2022, arXiv:2012.03826). If there are
        more than MAX_FIT_POINTS points, the parameters are fitted to that many of them, spread evenly, since
        each evaluation of the likelihood of n points takes O(n^3) steps. Predictions use all points.
        """
        center = np.log([*INITIAL_VARIANCES.values(), *[INITIAL_LENGTH] * x.shape[1]])
        scale = np.ones_like(center)
        scale[3] = 0.5

        some = np.linspace(0, len(x) - 1, min(len(x), MAX_FIT_POINTS)).round().astype(int)
        of_some = x[some], y[some]

        def compute_loss(log: Vector) -> tuple[float, Vector]:
            value, slope = compute_log_likelihood(*of_some, log)
            off = (log - center) / scale
            return float(0.5 * off @ off - value), off / scale - slope

        found = minimize(compute_loss, center, jac=True, method="L-BFGS-B", bounds=[LOG_BOUNDS] * len(center))
        return cls(x, y, found.x)

    def condition_on(self, x: Float[Vector, "m d"], y: Float[Vector, " m"]) -> "GaussianProcess":
        """Return the Gaussian process with m additional observations and the same kernel parameters."""
        return GaussianProcess(np.concatenate([self.x, x]), np.concatenate([self.y, y]), self.log_params)

    def mean(self, x: Float[Vector, "m d"]) -> Float[Vector, " m"]:
        """Return the predictive mean at x (Rasmussen and Williams, equation 2.25)."""
        return _compute_kernel(x, self.x, self.log_params)[0] @ self._weights

    @cached_property
    def _weights(self) -> Float[Vector, " n"]:
        known = _compute_kernel(self.x, self.x, self.log_params)[0] + (np.exp(self.log_params[3]) + JITTER) * np.eye(
            len(self.x)
        )
        return cho_solve((cholesky(known, lower=True), True), self.y)


def compute_log_likelihood(
    x: Float[Vector, "n d"], y: Float[Vector, " n"], log: Float[Vector, " p"]
) -> tuple[float, Vector]:
    """Return the log marginal likelihood of y and its gradient with respect to `log`, shape [p].

    The constant term is omitted (Rasmussen and Williams, equations 5.8 and 5.9).
    """
    matern, linear, bias, noise = np.exp(log[:4])
    known, decay = _compute_kernel(x, x, log)
    known.flat[:: len(x) + 1] += noise + JITTER
    lower = cholesky(known, lower=True)
    weights = cho_solve((lower, True), y)
    pull = np.outer(weights, weights) - _invert_cholesky(lower)
    dots = x @ x.T
    value = -0.5 * y @ weights - np.log(np.diag(lower)).sum()
    slope = [
        (pull * (known - linear * dots - bias)).sum() - np.trace(pull) * (noise + JITTER),
        linear * (pull * dots).sum(),
        bias * pull.sum(),
        noise * np.trace(pull),
    ]
    scaled, moved = x / np.exp(log[4:]), 3 * matern * pull * decay  # lengths: sum over pairs of moved * distance^2
    lengths = 2 * ((scaled**2 * moved.sum(1)[:, None]).sum(0) - (scaled * (moved @ scaled)).sum(0))
    return float(value), 0.5 * np.concatenate([slope, lengths])


def _invert_cholesky(lower: Float[Vector, "n n"]) -> Float[Vector, "n n"]:
    """Return the inverse of the matrix with this Cholesky factor, in a third of the steps of a solve."""
    half = np.tril(dpotri(lower, lower=1)[0])
    return half + np.tril(half, -1).T


def _compute_kernel(
    a: Float[Vector, "n d"], b: Float[Vector, "m d"], log: Float[Vector, " p"]
) -> tuple[Vector, Vector]:
    """Return k(a, b) without noise, shape [n, m], and the exponential factor in it."""
    matern, linear, bias, _ = np.exp(log[:4])
    here, there = a / np.exp(log[4:]), b / np.exp(log[4:])
    far = (-2 * here) @ there.T
    far += (here**2).sum(1)[:, None]
    far += (there**2).sum(1)
    np.maximum(far, 0, out=far)
    np.sqrt(far, out=far)  # in place, since there are many candidates
    far *= -ROOT_3
    decay = np.exp(far)
    k = np.subtract(1, far, out=far)
    k *= matern * decay
    k += (linear * a) @ b.T
    k += bias
    return k, decay
