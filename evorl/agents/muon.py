"""Muon optimizer."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax.contrib

from evorl import tree
from evorl.errors import require, require_int
from evorl.types import Array, Params


@dataclass(frozen=True)
class Muon:
    """Muon optimizer: Nesterov momentum, with matrix updates orthogonalized by Newton-Schulz steps.

    With gradient g, m <- momentum * m + g, and the direction is g + momentum * m. The direction of a kernel
    [inputs, outputs] is orthogonalized and multiplied by sqrt(max(1, outputs / inputs)). Parameters that are
    not matrices use the direction unchanged.

    Args:
        momentum: Decay of the momentum, at least 0 and below 1.
        steps: Number of Newton-Schulz steps.

    Source: Jordan 2024, kellerjordan.github.io/posts/muon.
    """

    momentum: float = 0.95
    steps: int = 5

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must be at least 0 and below 1")
        require_int("steps", self.steps)

    def init(self, params: Params) -> Params:
        return tree.zeros_like(params)

    def update(self, gradient: Params, state: Params, params: Params) -> tuple[Params, Params]:
        del params
        state = jax.tree.map(lambda m, g: self.momentum * m + g, state, gradient)
        direction = jax.tree.map(lambda m, g: g + self.momentum * m, state, gradient)
        return jax.tree.map(self._orthogonalize, direction), state

    def _orthogonalize(self, x: Array) -> Array:
        if x.ndim != 2:
            return x
        orthogonal: Any = optax.contrib.scale_by_muon(ns_steps=self.steps, beta=0.0, nesterov=False)
        made = orthogonal.update(x, orthogonal.init(x))[0]
        return made * jnp.sqrt(max(1.0, x.shape[1] / x.shape[0]))
