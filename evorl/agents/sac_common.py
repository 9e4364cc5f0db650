"""Base class of SAC and DiscreteSAC: hyperparameters, update steps and the entropy temperature."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import check_critics
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder
from evorl.parts import Number, number, part
from evorl.types import Memory, Metrics, Params

ENTROPY_UNIT = "entropy_unit"  # metric of the actor loss: the unit of the target entropy


@struct.dataclass
class SACState:
    actor: TrainState  # without target network
    critic: TrainState
    temperature: TrainState | None  # its params are log(temperature); None if fixed


@part
class SoftActorCritic(BaseAgent):
    """Base class of SAC and DiscreteSAC, which define the losses and the unit of the target entropy.

    Args:
        hidden: Widths of the hidden layers of actor and critics; () makes them linear.
        num_critics: Number of critics; the minimum over them is used.
        layer_norm: Whether to apply layer normalization before each activation.
        learned_temperature: Whether the temperature is learned; otherwise it is fixed.
        encoder: Module that maps observations to features.
        core: Recurrent core, such as GRU, LSTM or S5; FEEDFORWARD for none.
        optimizer: Gradient transformation without a learning rate, for actor and critics.
    """

    hidden: tuple[int, ...] = (256, 256)
    num_critics: int = 2
    layer_norm: bool = False
    learned_temperature: bool = True
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(3e-4, 0, 1, "learning rate of the actor", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(3e-4, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    temperature_lr: Number = number(3e-4, 0, 1, "learning rate of the temperature, if it is learned")
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.005, 0, 1, "step size of the soft update of the target networks")
    temperature: Number = number(1.0, 0, about="entropy coefficient (temperature); its initial value, if it is learned")
    target_entropy: Number = number(0.0, about="target entropy of the policy")
    max_grad_norm: Number = number(float("inf"), 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def create_state(self, actor: Params, critic: Params) -> SACState:
        """Return the initial state of the agent.

        Args:
            actor: Parameters of the actor.
            critic: Parameters of the critics.
        """
        learned: Any = None
        if self.learned_temperature:
            smallest = jnp.finfo(jnp.float32).tiny
            learned = TrainState.create(jnp.log(jnp.maximum(self.temperature, smallest)), has_target=False)
        actor_state = TrainState.create(actor, has_target=False, optimizer=self.optimizer)
        return SACState(actor_state, TrainState.create(critic, optimizer=self.optimizer), learned)

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def current_temperature(self, state: SACState) -> Number:
        """Return the current entropy temperature, [].

        Args:
            state: State of the agent.
        """
        return self.temperature if state.temperature is None else jnp.exp(state.temperature.params)

    def update_critic(self, state: SACState, loss: LossFn) -> tuple[SACState, Metrics]:
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, self.max_grad_norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: SACState, loss: LossFn) -> tuple[SACState, Metrics]:
        """Take one gradient step of the actor and, if the temperature is learned, one of the temperature.

        The temperature decreases if the entropy is above its target, and increases if it is below
        (arXiv:1812.05905, eq. 18).
        """
        actor, metrics = state.actor.apply_gradients(loss, self.actor_lr, self.max_grad_norm)
        metrics |= {"temperature": self.current_temperature(state)}
        target_entropy = self.target_entropy * metrics[ENTROPY_UNIT]
        metrics = {name: x for name, x in metrics.items() if name != ENTROPY_UNIT}
        if isinstance(state.temperature, TrainState):
            surplus = metrics["entropy"] - target_entropy
            step = state.temperature.apply_gradients(lambda log: (log * surplus, {}), self.temperature_lr, jnp.inf)
            state = replace(state, temperature=step[0])
        return replace(state, actor=actor), metrics

    def update_targets(self, state: SACState) -> SACState:
        return replace(state, critic=state.critic.polyak_update(self.tau))
