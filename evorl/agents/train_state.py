"""Parameters that are trained by gradient steps, with optional target parameters."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from typing_extensions import Protocol, runtime_checkable

from evorl import mesh
from evorl.errors import is_number, require
from evorl.parts import Number
from evorl.priors import LogUniform, OneMinus
from evorl.types import Array, Metrics, Params

LEARNING_RATE_PRIOR = LogUniform(1e-5, 1e-2)  # search range of Adam's learning rate
DISCOUNT_PRIOR = OneMinus(LogUniform(1e-3, 1e-1))  # effective horizon of 10 to 1000 steps

LossFn = Callable[[Params], tuple[Array, Metrics]]


@runtime_checkable
class Optimizer(Protocol):
    """Optimizer: a gradient transformation of optax without a learning rate.

    Examples are optax.scale_by_rms() and optax.scale_by_factored_rms(). optax.adam(rate) is not an Optimizer,
    since it includes a learning rate and a sign.
    """

    def init(self, params: Params) -> Any:
        """Return the initial optimizer state.

        Args:
            params: Parameters to optimize.
        """
        ...

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Return the direction that is subtracted from the parameters, times the learning rate.

        Args:
            gradient: Gradient, with the structure of params.
            state: Optimizer state.
            params: Current parameters.

        Returns:
            The direction, with the structure of params, and the new optimizer state.
        """
        ...


@dataclass(frozen=True)
class Adam:
    """Adam optimizer.

    Args:
        b1: Decay of the first moment, at least 0 and below 1.
        b2: Decay of the second moment, at least 0 and below 1.
        eps: Constant that is added to the denominator.

    Raises:
        OptionError: If a value is out of its range.

    Source: Kingma & Ba 2015, arXiv:1412.6980.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name, least, most in (("b1", 0, 1), ("b2", 0, 1), ("eps", 0, math.inf)):
            value = getattr(self, name)
            require(
                is_number(value) and least <= value < most, name, value, f"must be at least {least} and below {most}"
            )

    def init(self, params: Params) -> Any:
        return optax.scale_by_adam(self.b1, self.b2, self.eps).init(params)

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        del params
        return optax.scale_by_adam(self.b1, self.b2, self.eps).update(gradient, state)


ADAM = Adam()


def _require_descent(optimizer: Optimizer) -> None:
    with mesh.eager_mode():
        slope = {"w": jnp.ones((2, 2))}
        direction = optimizer.update(slope, optimizer.init(slope), slope)[0]["w"]
        wanted = "must return the direction to subtract, without a learning rate"
        require(bool(direction.sum() > 0), "optimizer", type(optimizer).__name__, wanted)


@struct.dataclass
class TrainState:
    """Parameters, their target parameters, and the state of their optimizer.

    Args:
        params: Parameters.
        target_params: Target parameters, which follow params slowly; None for no target.
        opt_state: State of the optimizer; None if the parameters are not trained by gradient.
        optimizer: Gradient transformation without a learning rate.
    """

    params: Params
    target_params: Params
    opt_state: optax.OptState | None
    optimizer: Optimizer = struct.field(pytree_node=False, default=ADAM)

    @classmethod
    def create(cls, params: Params, has_target: bool = True, optimizer: Optimizer = ADAM) -> "TrainState":
        """Return a new train state, whose target equals params and whose optimizer is in its initial state.

        Args:
            params: Parameters.
            has_target: Whether to keep target parameters.
            optimizer: Gradient transformation without a learning rate.

        Raises:
            OptionError: If the optimizer's direction points uphill, as it does if it includes a learning
                rate.
        """
        if not isinstance(optimizer, Adam):
            _require_descent(optimizer)
        return cls(params, params if has_target else None, optimizer.init(params), optimizer)

    def reset_with_params(self, params: Params) -> "TrainState":
        """Return a new train state with other parameters, with a target if self has one.

        Args:
            params: The other parameters.
        """
        return TrainState.create(params, bool(jax.tree.leaves(self.target_params)), self.optimizer)

    def apply_gradients(
        self, loss: LossFn, learning_rate: Number, max_grad_norm: Number
    ) -> tuple["TrainState", Metrics]:
        """Take one optimizer step on the gradient of a loss, clipped by its global norm.

        Args:
            loss: Function from params to (loss [], metrics).
            learning_rate: Learning rate.
            max_grad_norm: Maximum norm of the gradient.

        Returns:
            The new train state and the metrics.
        """
        gradient, metrics = jax.grad(loss, has_aux=True)(self.params)
        return self.optimizer_step(gradient, learning_rate, max_grad_norm), metrics

    def optimizer_step(self, gradient: Params, learning_rate: Number, max_grad_norm: Number) -> "TrainState":
        """Take one optimizer step along a gradient, clipped by its global norm.

        Args:
            gradient: Gradient, with the structure of params.
            learning_rate: Learning rate.
            max_grad_norm: Maximum norm of the gradient.

        Returns:
            The new train state.
        """
        norm = optax.tree.norm(gradient)
        norm = jnp.maximum(norm, jnp.finfo(norm.dtype).tiny)
        scale = jnp.minimum(1.0, max_grad_norm / norm)  # optax's clip computes a NaN, then masked, if the bound is inf
        gradient = jax.tree.map(lambda x: scale * x, gradient)
        direction, moments = self.optimizer.update(gradient, self.opt_state, self.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, self.params, direction)
        return replace(self, params=params, opt_state=moments)

    def polyak_update(self, tau: Number) -> "TrainState":
        """Move the target parameters towards the parameters by the fraction tau (soft update).

        Args:
            tau: Fraction, from 0 (no change) to 1 (copy).

        Returns:
            The new train state.

        Source: Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1.
        """
        target = jax.tree.map(lambda old, new: old + tau * (new - old), self.target_params, self.params)
        return replace(self, target_params=target)
