"""Parameters that learn by gradient: Adam, then a soft step of their target."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from evorl.hyperparameters import Number
from evorl.priors import LogUniform, OneMinus
from evorl.types import Array, Metrics, Params

RATE = LogUniform(1e-5, 1e-2)  # where the learning rate of Adam is searched
HORIZON = OneMinus(LogUniform(1e-3, 1e-1))  # where a discount is, 10 to 1000 steps

Loss = Callable[[Params], tuple[Array, Metrics]]


@struct.dataclass
class TrainState:
    """Parameters, their slowly following target, and Adam's moments."""

    params: Any
    target: Any
    moments: Any

    @classmethod
    def fresh(cls, params: Params, follows: bool = True) -> "TrainState":
        """A target equal to params, or none unless it follows, and moments of zero."""
        return cls(params, params if follows else (), optax.scale_by_adam().init(ravel_pytree(params)[0]))

    def renewed(self, params: Params) -> "TrainState":
        """Other params at their beginning, with a target where self has one."""
        return TrainState.fresh(params, follows=bool(jax.tree.leaves(self.target)))

    def descend(self, loss: Loss, learning_rate: Number, max_grad_norm: Number) -> tuple["TrainState", Metrics]:
        """One step of Adam on loss(params) -> (value, metrics), its gradient clipped by its norm."""
        gradient, metrics = jax.grad(loss, has_aux=True)(self.params)
        gradient, unravel = ravel_pytree(gradient)
        norm = jnp.maximum(jnp.linalg.norm(gradient), jnp.finfo(gradient.dtype).tiny)
        gradient *= jnp.minimum(1.0, max_grad_norm / norm)  # optax's own makes NaN of an infinite bound, and masks it
        direction, moments = optax.scale_by_adam().update(gradient, self.moments)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, self.params, unravel(jnp.asarray(direction)))
        return replace(self, params=params, moments=moments), metrics

    def follow(self, tau: Number) -> "TrainState":
        """The target moves to params by the fraction tau (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        target = jax.tree.map(lambda old, new: old + tau * (new - old), self.target, self.params)
        return replace(self, target=target)
