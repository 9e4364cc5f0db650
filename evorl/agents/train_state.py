"""Parameters that learn by gradient: a step of their optimizer, then a soft one of their target."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree
from typing_extensions import Protocol, runtime_checkable

from evorl import mesh
from evorl.errors import is_number, require
from evorl.parts import Number
from evorl.priors import LogUniform, OneMinus
from evorl.types import Array, Metrics, Params

LEARNING_RATE_PRIOR = LogUniform(1e-5, 1e-2)  # where the learning rate of Adam is searched
DISCOUNT_PRIOR = OneMinus(LogUniform(1e-3, 1e-1))  # where a discount is, 10 to 1000 steps

LossFn = Callable[[Params], tuple[Array, Metrics]]


@runtime_checkable
class Optimizer(Protocol):
    """Turns a gradient into what is subtracted, times the learning rate: a transformation of optax without that rate.

    As optax.scale_by_rms() or optax.scale_by_factored_rms(); optax.adam(rate) is none, since it has a rate and a sign.
    """

    def init(self, params: Params) -> Any:
        """What it keeps from step to step."""
        ...

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """The direction of the gradient, and what it keeps then."""
        ...


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980), of all parameters as one vector, which is faster than of each alone."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name, least, most in (("b1", 0, 1), ("b2", 0, 1), ("eps", 0, math.inf)):
            value = getattr(self, name)
            require(is_number(value) and least <= value < most, name, value, f"must be from {least} to below {most}")

    def init(self, params: Params) -> Any:
        return optax.scale_by_adam(self.b1, self.b2, self.eps).init(ravel_pytree(params)[0])

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        del params
        numbers, unravel = ravel_pytree(gradient)
        direction, state = optax.scale_by_adam(self.b1, self.b2, self.eps).update(numbers, state)
        return unravel(jnp.asarray(direction)), state


ADAM = Adam()


def _require_descent(optimizer: Optimizer) -> None:
    with mesh.eager_mode():
        slope = {"w": jnp.ones((2, 2))}
        direction = optimizer.update(slope, optimizer.init(slope), slope)[0]["w"]
        wanted = "must give what is subtracted: leave out its learning rate"
        require(bool(direction.sum() > 0), "optimizer", type(optimizer).__name__, wanted)


@struct.dataclass
class TrainState:
    """Parameters, their slowly following target, and what their optimizer keeps."""

    params: Params
    target_params: Params
    opt_state: optax.OptState | None
    optimizer: Optimizer = struct.field(pytree_node=False, default=ADAM)

    @classmethod
    def create(cls, params: Params, has_target: bool = True, optimizer: Optimizer = ADAM) -> "TrainState":
        """A target equal to params, or none unless it follows, and an optimizer that has seen nothing.

        Raises OptionError where the optimizer's directions lead uphill, as those do that have a rate of their own.
        """
        if not isinstance(optimizer, Adam):
            _require_descent(optimizer)
        return cls(params, params if has_target else None, optimizer.init(params), optimizer)

    def reset_with_params(self, params: Params) -> "TrainState":
        """Other params at their beginning, with a target where self has one."""
        return TrainState.create(params, bool(jax.tree.leaves(self.target_params)), self.optimizer)

    def apply_gradients(
        self, loss: LossFn, learning_rate: Number, max_grad_norm: Number
    ) -> tuple["TrainState", Metrics]:
        """One step of the optimizer on loss(params) -> (value, metrics), its gradient clipped by its norm."""
        gradient, metrics = jax.grad(loss, has_aux=True)(self.params)
        return self.optimizer_step(gradient, learning_rate, max_grad_norm), metrics

    def optimizer_step(self, gradient: Params, learning_rate: Number, max_grad_norm: Number) -> "TrainState":
        """One step of the optimizer along a gradient, clipped by its norm."""
        numbers, unravel = ravel_pytree(gradient)
        norm = jnp.maximum(jnp.linalg.norm(numbers), jnp.finfo(numbers.dtype).tiny)
        numbers *= jnp.minimum(1.0, max_grad_norm / norm)  # optax's own makes NaN of an infinite bound, and masks it
        direction, moments = self.optimizer.update(unravel(numbers), self.opt_state, self.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, self.params, direction)
        return replace(self, params=params, opt_state=moments)

    def polyak_update(self, tau: Number) -> "TrainState":
        """The target moves to params by the fraction tau (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        target = jax.tree.map(lambda old, new: old + tau * (new - old), self.target_params, self.params)
        return replace(self, target_params=target)
