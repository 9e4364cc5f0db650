"""TD3; DDPG is TD3 with one critic and without target smoothing."""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

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
from evorl.networks.mlp import SMALL_WEIGHTS, Critics, DeterministicActor
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
    """Twin delayed deep deterministic policy gradient (TD3).

    In `OffPolicy`, the actor is updated after two gradient steps of the critics, unless `policy_delay` is set; in
    ERL and CEM-RL, after each one. The defaults follow the paper; the learning rates and the exploration noise
    follow table 4c of EvoRL (arXiv:2501.15129).

    Args:
        hidden: Widths of the hidden layers of actor and critics; () makes them linear.
        num_critics: Number of critics; the target takes the minimum over them.
        layer_norm: Whether to apply layer normalization before each activation.
        encoder: Module that maps observations to features.
        core: Recurrent core, such as GRU, LSTM or S5; FEEDFORWARD for none.
        optimizer: Gradient transformation without a learning rate.

    Source: Fujimoto et al. 2018, arXiv:1802.09477.
    """

    policy_delay: ClassVar[int] = 2

    hidden: tuple[int, ...] = (256, 256)
    num_critics: int = 2
    layer_norm: bool = False
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    actor_lr: Number = number(3e-4, 0, 1, "learning rate of the actor", LEARNING_RATE_PRIOR)
    critic_lr: Number = number(3e-4, 0, 1, "learning rate of the critics", LEARNING_RATE_PRIOR)
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    tau: Number = number(0.005, 0, 1, "step size of the soft update of the target networks")
    exploration_noise: Number = number(
        0.1, 0, 10, "std of the exploration noise, in units of half the action range", LogUniform(0.02, 0.5)
    )
    policy_noise: Number = number(0.2, 0, 10, "std of the target smoothing noise, in units of half the action range")
    noise_clip: Number = number(0.5, 0, 10, "bound of the target smoothing noise, in units of half the action range")
    max_grad_norm: Number = number(float("inf"), 0, about="gradients are clipped to this norm")

    def __post_init__(self) -> None:
        check_critics(self)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space is a vector of real numbers."""
        require_action_vector(self)

    @property
    def actor(self) -> Network:
        """Return the network from observations to actions in [-1, 1]."""
        body = DeterministicActor(num_features(self.action_space), self.hidden, self.layer_norm)
        return Network(self.observation_space, body, self.encoder, self.core)

    @property
    def critic(self) -> Network:
        """Return the network from observations and actions to values, [*batch, critics].

        If the observation space is a PrivilegedObs, critics see the privileged state, the actor the observation.
        """
        return self.critics(self.num_critics)

    def critics(self, n: int) -> Network:
        """Return the network of the first n critics.

        Args:
            n: Number of critics.
        """
        body = Critics(n, self.hidden, self.layer_norm, SMALL_WEIGHTS)
        return Network(self.observation_space, body, self.encoder, self.core, privileged=True)

    def init(self, key: Key) -> TD3State:
        key_actor, key_critic = jax.random.split(key)
        action = jnp.zeros(num_features(self.action_space))
        actor, critic = self.actor.init_params(key_actor), self.critic.init_params(key_critic, action)
        fresh = partial(TrainState.create, optimizer=self.optimizer)
        return TD3State(fresh(actor), fresh(critic))

    def initial_memory(self) -> Memory:
        return self.core.initial_memory()

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        """Return the greedy action plus Gaussian noise, clipped to the bounds."""
        action, memory, extras = self.mode(params, obs, memory, key)
        noise = self.exploration_noise * jax.random.normal(key, action.shape)
        return self.clip(action + self.half_range * noise), memory, extras

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Array, Memory, dict[str, Any]]:
        del key
        memory, outputs = self.actor.apply(params, memory, obs, method="step")
        return self.to_action(outputs), memory, {}

    def to_action(self, outputs: Any) -> Float[Array, "*batch action"]:
        """Scale outputs of the actor to the bounds of the action space.

        Args:
            outputs: Outputs of the actor in [-1, 1], shape [*batch, action].

        Returns:
            Actions, shape [*batch, action].
        """
        low, high = self.bounds
        return (low + high) / 2 + self.half_range * outputs

    def greedy_action(self, method: str, params: Params, batch: Transition) -> Float[Array, "*batch action"]:
        """Return the greedy action of the actor.

        Args:
            method: "outputs" for the observations of the training steps, "next_outputs" for their successors.
            params: Parameters of the actor.
            batch: Transitions, or sequences of them.

        Returns:
            Actions, shape [*batch, action].
        """
        return self.to_action(self.actor.apply(params, batch, batch.memory, method=method))

    def values(
        self, method: str, params: Params, batch: Transition, action: Array, first: int | None = None
    ) -> Float[Array, "*batch critics"]:
        """Return Q_i(s, a) of all critics, or of the first ones.

        On sequences, each critic has its own recurrent state, which starts from the initial state at the
        start of the sequence.

        Args:
            method: "outputs" for s the observations of the training steps, "next_outputs" for s their
                successors.
            params: Parameters of all critics.
            batch: Transitions, or sequences of them.
            action: Actions a, shape [*batch, action].
            first: Number of critics to evaluate; None for all.

        Returns:
            Values, shape [*batch, critics].
        """
        critics = self.critic if first is None else self.critics(first)  # ignores the params of the others
        return jnp.asarray(critics.apply(params, batch, critics.initial_memories(batch), action, method=method))

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper bound of actions."""
        return require_action_vector(self).float_bounds

    @property
    def half_range(self) -> np.ndarray:
        """Return half of the action range, for each action dimension."""
        low, high = self.bounds
        return (high - low) / 2

    def clip(self, action: Array) -> Array:
        """Clip actions to the bounds of the action space.

        Args:
            action: Actions, shape [*batch, action].
        """
        return jnp.clip(action, *self.bounds)

    def critic_target(self, state: TD3State, batch: Transition, key: Key) -> Float[Array, "*batch"]:
        """Return the target of the critics, with target policy smoothing (eq. 14 of the paper).

        The target is r + discount * min_i Q_i'(s', clip(a' + clipped noise)), without the bootstrap if the
        step terminated.

        Args:
            state: State of the agent.
            batch: Transitions, or sequences of them.
            key: Random key of the noise.

        Returns:
            Targets, shape [*batch].
        """
        noise = self.policy_noise * jax.random.normal(key, batch.training_steps.action.shape)
        noise = jnp.clip(noise, -self.noise_clip, self.noise_clip)
        action = self.clip(
            self.greedy_action("next_outputs", state.actor.target_params, batch) + self.half_range * noise
        )
        value = self.values("next_outputs", state.critic.target_params, batch, action).min(-1)
        return td_target(batch.training_steps, value, self.discount)

    def critic_loss(
        self, params: Params, state: TD3State, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the squared error against the target, summed over critics, mean over the batch."""
        target = jax.lax.stop_gradient(self.critic_target(state, batch, key))
        value = self.values("outputs", params, batch, batch.training_steps.action)
        return mse_critic_loss(batch, value, target)

    def actor_loss(
        self, params: Params, state: TD3State, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return -Q_1(s, actor(s)), mean over the batch (the deterministic policy gradient, eq. 1)."""
        del key
        value = self.values(
            "outputs", state.critic.params, batch, self.greedy_action("outputs", params, batch), first=1
        )
        loss = -mean_of_rows(choice_mask(self.observation_space, batch), value[..., 0])
        return loss, {"actor_loss": loss}

    def update_critic(self, state: TD3State, loss: LossFn) -> tuple[TD3State, Metrics]:
        critic, metrics = state.critic.apply_gradients(loss, self.critic_lr, self.max_grad_norm)
        return replace(state, critic=critic), metrics

    def update_actor(self, state: TD3State, loss: LossFn) -> tuple[TD3State, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.actor_lr, self.max_grad_norm)
        return replace(state, actor=actor), metrics

    def update_targets(self, state: TD3State) -> TD3State:
        """Update all target networks, after the update of the actor (algorithm 1)."""
        tau = self.tau
        return TD3State(state.actor.polyak_update(tau), state.critic.polyak_update(tau))
