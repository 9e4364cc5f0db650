"""What the soft actor-critics share: their state, its steps, and the temperature that weighs the policy's entropy."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct

from evorl.agents.train_state import LossFn, Optimizer, TrainState
from evorl.hyperparameters import Number
from evorl.types import Hyperparams, Metrics, Params

MAX_ENTROPY = "max_entropy"  # among the metrics of a loss: of what the target entropy is a share


@struct.dataclass
class SACState:
    actor: TrainState  # it has no target
    critic: TrainState
    temperature: Any  # TrainState of its logarithm, or () where it is fixed

    def current_temperature(self, hyperparams: Hyperparams) -> Number:
        """Of the entropy, []: the temperature."""
        learned = isinstance(self.temperature, TrainState)
        return jnp.exp(self.temperature.params) if learned else hyperparams.temperature


def create_state(actor: Params, critic: Params, temperature: Number | None, optimizer: Optimizer) -> SACState:
    """The state before anything is learned; the temperature is where it begins to be learned, None where it is not."""
    learned: Any = ()
    if temperature is not None:
        smallest = jnp.finfo(jnp.float32).tiny
        learned = TrainState.create(jnp.log(jnp.maximum(temperature, smallest)), has_target=False)
    return SACState(
        TrainState.create(actor, has_target=False, optimizer=optimizer),
        TrainState.create(critic, optimizer=optimizer),
        learned,
    )


def update_critic(state: SACState, loss: LossFn, hyperparams: Hyperparams) -> tuple[SACState, Metrics]:
    """A step of the critics."""
    critic, metrics = state.critic.apply_gradients(loss, hyperparams.critic_lr, hyperparams.max_grad_norm)
    return replace(state, critic=critic), metrics


def update_actor(
    state: SACState, loss: LossFn, target_entropy: Number, hyperparams: Hyperparams
) -> tuple[SACState, Metrics]:
    """A step of the actor, and of a learned temperature, down where the entropy is above its target."""
    actor, metrics = state.actor.apply_gradients(loss, hyperparams.actor_lr, hyperparams.max_grad_norm)
    metrics |= {"temperature": state.current_temperature(hyperparams)}
    target_entropy *= metrics.get(MAX_ENTROPY, 1.0)
    metrics = {name: x for name, x in metrics.items() if name != MAX_ENTROPY}
    if isinstance(state.temperature, TrainState):
        surplus = metrics["entropy"] - target_entropy
        step = state.temperature.apply_gradients(lambda log: (log * surplus, {}), hyperparams.temperature_lr, jnp.inf)
        state = replace(state, temperature=step[0])
    return replace(state, actor=actor), metrics
