"""Gaussian processes over the unit cube, in NumPy: Matern 3/2 with a length for each coordinate, linear, and noise."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri  # pyright: ignore[reportAttributeAccessIssue]
from scipy.optimize import minimize

ROOT_3 = np.sqrt(3.0)
JITTER = 1e-8
INITIAL_VARIANCES = {"matern": 1.0, "linear": 1.0, "bias": 1.0, "noise": 1e-2}  # variances
MAX_FIT_POINTS = 300  # points for which the likeliest numbers are sought
INITIAL_LENGTH = 0.5  # half the unit cube
LOG_BOUNDS = (-9.0, 5.0)  # of all logarithms: a variance from 1e-4, a length to 150

Vector = np.ndarray


@dataclass(frozen=True)
class GaussianProcess:
    """Numbers over the unit cube, of which n are known with noise.

    k(a, b) = matern (1 + sqrt(3) r) exp(-sqrt(3) r) + linear a.b + bias, with r the distance of a and b, each
    coordinate by its length (Rasmussen and Williams 2006, eqs. 4.17 and 5.9).
    """

    x: Float[Vector, "n d"]
    y: Float[Vector, " n"]
    log_params: Float[Vector, " p"]  # of matern, linear, bias, noise, and the d lengths

    @classmethod
    def fit(cls, x: Float[Vector, "n d"], y: Float[Vector, " n"]) -> "GaussianProcess":
        """With the numbers that are likeliest a posteriori, from one start, by L-BFGS.

        Their logarithms are normal a priori around INITIAL_VARIANCES and INITIAL_LENGTH, with a deviation of 1; that of
        the noise 0.5 (HEBO, Cowen-Rivers et al. 2022, arXiv:2012.03826). Of more than MAX_FIT_POINTS points they are
        the likeliest for so many, spread evenly, since each look at n of them takes n^3 steps; what is expected knows
        all.
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
        """The same, which knows m more."""
        return GaussianProcess(np.concatenate([self.x, x]), np.concatenate([self.y, y]), self.log_params)

    def mean(self, x: Float[Vector, "m d"]) -> Float[Vector, " m"]:
        """What is expected at x (Rasmussen and Williams, eq. 2.25)."""
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
    """The logarithm of y's density, without its constant, and its slope in log [p] (ibid., eqs. 5.8 and 5.9)."""
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
    scaled, moved = x / np.exp(log[4:]), 3 * matern * pull * decay  # sum over pairs of moved times a squared distance
    lengths = 2 * ((scaled**2 * moved.sum(1)[:, None]).sum(0) - (scaled * (moved @ scaled)).sum(0))
    return float(value), 0.5 * np.concatenate([slope, lengths])


def _invert_cholesky(lower: Float[Vector, "n n"]) -> Float[Vector, "n n"]:
    """Return the inverse of the matrix that has this Cholesky factor, in a third of the steps that solving takes."""
    half = np.tril(dpotri(lower, lower=1)[0])
    return half + np.tril(half, -1).T


def _compute_kernel(
    a: Float[Vector, "n d"], b: Float[Vector, "m d"], log: Float[Vector, " p"]
) -> tuple[Vector, Vector]:
    """k(a, b) [n, m] without noise, and the exponential in it."""
    matern, linear, bias, _ = np.exp(log[:4])
    here, there = a / np.exp(log[4:]), b / np.exp(log[4:])
    far = (-2 * here) @ there.T
    far += (here**2).sum(1)[:, None]
    far += (there**2).sum(1)
    np.maximum(far, 0, out=far)
    np.sqrt(far, out=far)  # in place, since candidates are many
    far *= -ROOT_3
    decay = np.exp(far)
    k = np.subtract(1, far, out=far)
    k *= matern * decay
    k += (linear * a) @ b.T
    k += bias
    return k, decay
