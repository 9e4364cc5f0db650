"""What the soft actor-critics share: their state, and the temperature, which weighs the entropy of the policy."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl.agents.train_state import TrainState
from evorl.hyperparameters import Number


@struct.dataclass
class SACState:
    actor: TrainState  # it has no target
    critic: TrainState
    temperature: Any  # TrainState of its logarithm, or () where it is fixed


def fresh_temperature(temperature: Number) -> TrainState:
    """The logarithm of a temperature, as it is learned."""
    return TrainState.fresh(jnp.log(jnp.maximum(temperature, jnp.finfo(jnp.float32).tiny)), follows=False)


def adjusted(temperature: TrainState, surplus: Array, hyperparams: Any) -> TrainState:
    """A step that lowers the temperature where the entropy has a surplus over its target."""
    return temperature.descend(lambda log: (log * surplus, {}), hyperparams.temperature_lr, jnp.inf)[0]
