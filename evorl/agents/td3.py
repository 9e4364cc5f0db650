"""TD3, and DDPG as TD3 with one critic and no smoothing."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.checks import check_critics, require_action_vector
from evorl.agents.losses import choice_mask, mean_of_rows, mse_critic_loss, td_target
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.networks.features import num_features
from evorl.networks.mlp import Critics, DeterministicActor
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Key, Memory, Metrics, Params, Transition


@struct.dataclass
class TD3State:
    actor: TrainState
    critic: TrainState


@part
class TD3(BaseAgent):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

    How often the actor moves is the workflow's actor_interval. Defaults are theirs; learning rates and exploration as
    in table 4c of EvoRL (arXiv:2501.15129).
    """

    hidden: tuple[int, ...] = (256, 256)
    num_critics: int = 2
    layer_norm: bool = False
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(3e-4, 0, 1, "learning rate of the actor", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(3e-4, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.005, 0, 1, "fraction by which targets follow at each update")
    explore_std: Number = number(
        0.1, 0, 10, "std of exploration noise, in half ranges of the action", LogUniform(0.02, 0.5)
    )
    target_std: Number = number(0.2, 0, 10, "std of target smoothing noise, in half ranges of the action")
    target_clip: Number = number(0.5, 0, 10, "bound of target smoothing noise, in half ranges of the action")
    max_grad_norm: Number = number(float("inf"), 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def check_spaces(self) -> None:
        require_action_vector(self)

    @property
    def actor(self) -> Network:
        """Actions from observations, each number in [-1, 1]."""
        body = DeterministicActor(num_features(self.action_space), self.hidden, self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core)

    @property
    def critic(self) -> Network:
        """Values from observation and action."""
        return self.critics(self.num_critics)

    def critics(self, n: int) -> Network:
        """The first n critics."""
        return Network(self.observation_space, Critics(n, self.hidden, self.layer_norm), self.encoder, self.core)

    def init(self, key: Key) -> TD3State:
        key_actor, key_critic = jax.random.split(key)
        action = jnp.zeros(num_features(self.action_space))
        actor, critic = self.actor.init_params(key_actor), self.critic.init_params(key_critic, action)
        fresh = partial(TrainState.create, optimizer=self.optimizer)
        return TD3State(fresh(actor), fresh(critic))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def act(self, params: Params, obs: Array, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """The greedy action with normal noise."""
        action, memory, extras = self.mode(params, obs, memory, key)
        noise = self.explore_std * jax.random.normal(key, action.shape)
        return self.clip(action + self.half_range * noise), memory, extras

    def mode(self, params: Params, obs: Array, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, numbers = self.actor.apply(params, memory, obs, method="step")
        return self.to_action(numbers), memory, {}

    def to_action(self, numbers: Any) -> Float[Array, "*batch action"]:
        """What the actor's numbers in [-1, 1] stand for."""
        low, high = self.bounds
        return (low + high) / 2 + self.half_range * numbers

    def greedy_action(self, method: str, params: Params, batch: Transition) -> Float[Array, "*batch action"]:
        """The actor's action on what is learned from ("values"), or on its successors ("next_values")."""
        return self.to_action(self.actor.apply(params, batch, batch.memory, method=method))

    def values(
        self, method: str, params: Params, batch: Transition, action: Array, first: int | None = None
    ) -> Float[Array, "*batch critics"]:
        """Q_i(s, a) of all or the first critics; s as for greedy_action.

        Their own memory of a sequence begins with it.
        """
        critics = self.critic if first is None else self.critics(first)  # which leaves the others' params
        return jnp.asarray(critics.apply(params, batch, critics.initial_memories(batch), action, method=method))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the highest action."""
        return require_action_vector(self).bounds

    @property
    def half_range(self) -> np.ndarray:
        """Half of what lies between the bounds, of each number."""
        low, high = self.bounds
        return (high - low) / 2

    def clip(self, action: Array) -> Array:
        """An action within the bounds."""
        return jnp.clip(action, *self.bounds)

    def critic_target(self, state: TD3State, batch: Transition, key: Key) -> Float[Array, "*batch"]:
        """r + discount * min_i Q_i'(s', clip(a' + clipped noise)), without bootstrap where terminated (eq. 14)."""
        noise = self.target_std * jax.random.normal(key, batch.training_steps.action.shape)
        noise = jnp.clip(noise, -self.target_clip, self.target_clip)
        action = self.clip(
            self.greedy_action("next_values", state.actor.target_params, batch) + self.half_range * noise
        )
        value = self.values("next_values", state.critic.target_params, batch, action).min(-1)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: TD3State, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Squared error of every critic against the target, summed over critics, mean over the batch."""
        target = jax.lax.stop_gradient(self.critic_target(state, batch, key))
        value = self.values("values", params, batch, batch.training_steps.action)
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: TD3State, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """-Q_1(s, actor(s)), mean over the batch (eq. 1 of the deterministic policy gradient)."""
        del key
        value = self.values("values", state.critic.params, batch, self.greedy_action("values", params, batch), first=1)
        loss = -mean_of_rows(choice_mask(self.observation_space, batch), value[..., 0])
        return loss, {"actor_loss": loss}

    def update_critic(self, state: TD3State, loss: LossFn) -> tuple[TD3State, Metrics]:
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, self.max_grad_norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: TD3State, loss: LossFn) -> tuple[TD3State, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.actor_lr, self.max_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: TD3State) -> TD3State:
        """All targets follow, after the actor has moved (algorithm 1)."""
        tau = self.tau
        return TD3State(state.actor.polyak_update(tau), state.critic.polyak_update(tau))
