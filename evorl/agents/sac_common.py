"""What the soft actor-critics share: their numbers, their steps, and the temperature that weighs the entropy."""

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

ENTROPY_UNIT = "entropy_unit"  # among the metrics of an actor's loss: of what the target entropy is a multiple


@struct.dataclass
class SACState:
    actor: TrainState  # it has no target
    critic: TrainState
    temperature: TrainState | None  # of its logarithm; None where it is fixed


@part
class SoftActorCritic(BaseAgent):
    """The base of SAC and DiscreteSAC, which say what their losses are; theirs is the target entropy too."""

    hidden: tuple[int, ...] = (256, 256)
    num_critics: int = 2
    layer_norm: bool = False
    learned_temperature: bool = True
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(3e-4, 0, 1, "learning rate of the actor", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(3e-4, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    temperature_lr: Number = number(3e-4, 0, 1, "learning rate of the temperature, where it is learned")
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.005, 0, 1, "fraction by which targets follow at each update")
    temperature: Number = number(1.0, 0, about="weight of the entropy; where it is learned, at the beginning")
    target_entropy: Number = number(0.0, about="entropy to learn")
    max_grad_norm: Number = number(float("inf"), 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def create_state(self, actor: Params, critic: Params) -> SACState:
        """Return the state before anything is learned."""
        learned: Any = None
        if self.learned_temperature:
            smallest = jnp.finfo(jnp.float32).tiny
            learned = TrainState.create(jnp.log(jnp.maximum(self.temperature, smallest)), has_target=False)
        actor_state = TrainState.create(actor, has_target=False, optimizer=self.optimizer)
        return SACState(actor_state, TrainState.create(critic, optimizer=self.optimizer), learned)

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def current_temperature(self, state: SACState) -> Number:
        """Return the weight of the entropy, []."""
        return self.temperature if state.temperature is None else jnp.exp(state.temperature.params)

    def update_critic(self, state: SACState, loss: LossFn) -> tuple[SACState, Metrics]:
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, self.max_grad_norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: SACState, loss: LossFn) -> tuple[SACState, Metrics]:
        """Take a step of the actor, and one of a learned temperature, down where the entropy is above its target.

        arXiv:1812.05905, eq. 18.
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
