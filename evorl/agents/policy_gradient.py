"""Base class of on-policy agents with a policy and a value function: A2C, PPO, IMPALA and Puffer."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.agents.base_agent import BaseAgent
from evorl.agents.losses import ROW_METRICS, choice_mask, mean_of_rows
from evorl.agents.memory import is_recurrent
from evorl.agents.train_state import ADAM, DISCOUNT_PRIOR, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.errors import require, require_int
from evorl.networks.distributions import Distribution, Head, require_categorical
from evorl.networks.features import require_space
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FEEDFORWARD, FLAT, Core, Encoder, Network
from evorl.networks.policy_value import CentralizedNetwork, PolicyHead, PolicyValue, mask_policy_logits
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.returns import is_known, skip_forced_steps
from evorl.spaces import has_choice, has_privileged_state
from evorl.types import Batch, Key, Memory, Metrics, Params, Transition


@struct.dataclass
class PolicyGradientState:
    actor: TrainState  # policy and value, without target network


@part
class PolicyGradient(BaseAgent, ABC):
    """Base class of agents that learn a policy and a value function from rollouts: A2C, PPO, IMPALA and Puffer.

    A subclass defines the equations on arrays, without access to the network: `estimate_advantages` and, if
    they differ, `loss_of_rows` and `early_stop`.

    Args:
        hidden: Widths of the hidden layers; () makes policy and value linear.
        activation: Name of the activation function: "relu", "leaky_relu", "tanh", "swish", "elu" or "gelu".
        shared_trunk: Whether policy and value share the hidden layers.
        num_values: Size of the value ensemble. Each of its members has a separate network and the same
            targets; the value is their mean.
        distribution: Distribution of continuous actions: "tanh_normal" or "normal".
        encoder: Module that maps observations to features.
        core: Recurrent core, such as GRU, LSTM or S5; FEEDFORWARD for none.
        optimizer: Gradient transformation without a learning rate.
        state_dependent_std: Whether the standard deviations of continuous actions are outputs of the policy
            network, softplus(output) + 0.001. Otherwise, they are parameters.
        value_hidden: Widths of the hidden layers of the value function; None for those of `hidden`.
    """

    hidden: tuple[int, ...] = (256, 256)
    activation: str = "tanh"
    shared_trunk: bool = False
    num_values: int = 1
    distribution: str = "tanh_normal"
    encoder: Encoder = FLAT
    core: Core = FEEDFORWARD
    optimizer: Optimizer = ADAM
    state_dependent_std: bool = False
    value_hidden: tuple[int, ...] | None = None
    learning_rate: Number = number(
        3e-4, 0, 1, "learning rate of the policy and the value function", LEARNING_RATE_PRIOR
    )
    policy_coef: Number = number(1.0, 0, about="coefficient of the policy loss")
    value_coef: Number = number(1.0, 0, about="coefficient of the value loss")
    entropy_coef: Number = number(0.01, 0, about="coefficient of the entropy bonus", prior=LogUniform(1e-5, 1e-1))
    discount: Number = number(0.99, 0, 1, "discount factor", DISCOUNT_PRIOR)
    max_grad_norm: Number = number(10.0, 0, about="gradients are clipped to this norm")
    reward_scale: Number = number(1.0, 0, about="factor by which rewards are multiplied before learning")

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        require_int("num_values", self.num_values)
        if self.value_hidden is not None:
            check_layers(self.value_hidden, self.activation, "value_hidden")
            why = "must be null if the value function shares the layers of the policy (shared_trunk)"
            require(not self.shared_trunk, "value_hidden", list(self.value_hidden), why)
        super().__post_init__()

    def check_spaces(self) -> None:
        """Raise OptionError unless the action space has a policy distribution.

        A value function that sees a privileged state also requires that num_values is 1 and that it shares no
        hidden layers with the policy.
        """
        Head(self.action_space, self.distribution)
        if has_privileged_state(self.observation_space):
            why = "must be 1 if the value function sees a privileged state (PrivilegedObs)"
            require(self.num_values == 1, "num_values", self.num_values, why)
            require(
                not self.shared_trunk,
                "shared_trunk",
                "true",
                "must be false if the value function sees a privileged state (PrivilegedObs)",
            )

    @abstractmethod
    def estimate_advantages(
        self, transitions: Transition, ratio: Array, value: Array, next_value: Array
    ) -> tuple[Array, Array]:
        """Return the advantages of one trajectory and the targets of its value function.

        Args:
            transitions: Transitions, leaves [num_steps, ...].
            ratio: Probability of each action under the policy that learns, divided by its probability under
                the policy that sampled it, shape [num_steps].
            value: Value of each observation, shape [num_steps].
            next_value: Value of each true successor, shape [num_steps]; it counts unless the step terminated.

        Returns:
            Advantages and value targets, each of shape [num_steps].
        """

    def loss_of_rows(self, batch: Batch, log_prob: Array, value: Array, entropy: Array) -> tuple[Array, Metrics]:
        """Return the weighted loss on the rows of a batch.

        The policy loss is -log pi(a|s) A, and the value loss half the squared error. The entropy is
        subtracted with its weight.

        Args:
            batch: Batch with leaves [rows, ...].
            log_prob: Log-probability of each action under the current parameters, shape [rows].
            value: Value of each observation under the current parameters, shape [rows].
            entropy: Entropy of the policy under the current parameters, shape [rows].

        Returns:
            The loss [] and its metrics.
        """
        actor_loss = -mean_of_rows(batch.weight, log_prob * batch.advantage)
        critic_loss = 0.5 * mean_of_rows(batch.weight, (value - batch.target) ** 2)
        return self.weigh_losses(actor_loss, critic_loss, mean_of_rows(batch.weight, entropy), {})

    def weigh_losses(
        self, actor_loss: Array, critic_loss: Array, entropy: Array, more: Metrics
    ) -> tuple[Array, Metrics]:
        """Return the weighted sum of the losses and the entropy, and the metrics.

        Args:
            actor_loss: Policy loss, [].
            critic_loss: Value loss, [].
            entropy: Mean entropy of the policy, [], which is subtracted.
            more: Additional metrics.
        """
        loss = self.policy_coef * actor_loss + self.value_coef * critic_loss - self.entropy_coef * entropy
        metrics = {"actor_loss": actor_loss, "critic_loss": critic_loss, "entropy": entropy} | more
        return loss, jax.lax.stop_gradient(metrics)

    def early_stop(self, metrics: Metrics) -> bool | Array:
        """Return whether to skip the remaining epochs, given the metrics of the last one; here always False."""
        del metrics
        return False

    @property
    def head(self) -> Head:
        """Return the head, which maps network outputs to a distribution and its samples to actions."""
        return Head(self.action_space, self.distribution)

    @property
    def network(self) -> Network | CentralizedNetwork:
        """Return the network from observations to the parameters of the distribution and one or several values.

        If the observation space is a PrivilegedObs, the value has a separate network, which sees the
        privileged state.
        """
        space, sizes = self.observation_space, (self.head.size, self.head.num_stds, self.hidden, self.activation)
        if has_privileged_state(space):
            hidden = self.hidden if self.value_hidden is None else self.value_hidden
            policy = Network(space, PolicyHead(*sizes, self.state_dependent_std), self.encoder, self.core)
            value = Network(space, MLP(hidden, 1, self.activation), self.encoder, self.core, privileged=True)
            return CentralizedNetwork(space, policy, value)
        options = self.shared_trunk, self.num_values, self.state_dependent_std, self.value_hidden
        body = PolicyValue(*sizes, *options)
        return Network(space, body, self.encoder, self.core, mask_policy_logits)

    def init(self, key: Key) -> PolicyGradientState:
        params = self.network.init_params(key)
        return PolicyGradientState(TrainState.create(params, has_target=False, optimizer=self.optimizer))

    def initial_memory(self) -> Memory:
        require_space(self.observation_space, "observation_space")
        twice = has_privileged_state(self.observation_space)
        return (self.core.initial_memory(), self.core.initial_memory()) if twice else self.core.initial_memory()

    @property
    def is_recurrent(self) -> bool:
        """Return whether the agent has a recurrent state."""
        return is_recurrent(self)

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Sample an action; extras hold the sample, before it is mapped to the bounds, and the network outputs."""
        memory, outputs = self.apply_network("step", params, memory, obs)
        sample = self.policy_and_value(outputs)[0].sample(key)
        return self.head.to_action(sample), memory, {"sample": sample, "outputs": outputs}

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        del key
        memory, outputs = self.apply_network("step", params, memory, obs)
        sample = self.policy_and_value(outputs)[0].mode()
        return self.head.to_action(sample), memory, {"sample": sample, "outputs": outputs}

    def action_probabilities(self, params: Params, obs: Any) -> Float[Array, " choices"]:
        return require_categorical(self.apply(params, obs)[0]).probs()

    def apply_network(self, method: str, params: Params, *args: Any) -> Any:
        """Call a method of the network and return its result.

        Args:
            method: Name of the method, such as "step" or "sequence".
            params: Parameters of the network.
            *args: Arguments of the method.
        """
        return self.network.apply(params, *args, method=method)

    def policy_and_value(self, outputs: tuple[Array, Array, Array]) -> tuple[Distribution, Array]:
        """Return the distribution of samples and the value, from outputs of the network.

        Args:
            outputs: Parameters of the distribution, logarithms of the standard deviations, and values.

        Returns:
            The distribution, and the values: [*batch], or [*batch, values] for an ensemble.
        """
        parameters, log_std, value = outputs
        return self.head.distribution(parameters, log_std), value

    def mean_value(self, value: Array) -> Float[Array, "*batch"]:
        """Return the value, shape [*batch]: the mean over the ensemble, if there is one.

        Args:
            value: Values from the network: [*batch], or [*batch, values] for an ensemble.
        """
        return value.mean(-1) if self.num_values > 1 else value

    def apply(self, params: Params, obs: Any, memory: Memory | None = None) -> tuple[Distribution, Array]:
        """Return the distribution of samples and the value for a batch of observations.

        Args:
            params: Parameters of the network.
            obs: Observations, leaves [*batch, ...].
            memory: Recurrent state of each, leaves [*batch, ...]; None for the initial one.

        Returns:
            The distribution, and the values: [*batch], or [*batch, values] for an ensemble.
        """
        memory = self.initial_memory() if memory is None else memory
        return self.policy_and_value(self.apply_network("step", params, memory, obs)[1])

    def apply_sequence(
        self, params: Params, obs: Any, memory: Memory, ended: Bool[Array, "steps envs"]
    ) -> tuple[Memory, Distribution, Array]:
        """Evaluate the network on trajectories.

        Args:
            params: Parameters of the network.
            obs: Observations, leaves [steps, envs, ...].
            memory: Recurrent state before the first step, leaves [envs, ...].
            ended: Whether the episode ended with each step, shape [steps, envs]; the next step starts from
                the initial recurrent state.

        Returns:
            The recurrent state after each observation, the distribution of samples, and the values.
        """
        memories, outputs = self.apply_network("sequence", params, memory, obs, ended)
        return memories, *self.policy_and_value(outputs)

    def build_batch(self, params: Params, transitions: Transition, acted_by_current_params: bool) -> Batch:
        """Build the batch that the losses take, with leaves [num_steps, num_envs, ...].

        The transitions carry the outputs of the network that acted in `extras`. With
        `acted_by_current_params`, the network is not evaluated again.
        """
        t = transitions
        acted = self.policy_and_value(t.extras["outputs"])
        memory, (policy, values) = t.memory, acted
        if not acted_by_current_params:
            first = tree.index(t.memory, 0)
            memories, policy, values = self.apply_sequence(params, t.obs, first, t.is_done)
            begun = tree.select(t.is_done, tree.broadcast(self.initial_memory(), *t.is_done.shape), memories)
            memory = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs[:-1]]), first, begun)
        value, log_prob = self.mean_value(values), acted[0].log_prob(t.extras["sample"])
        beyond = self.bootstrap_value(params, replace(t, memory=memory))
        ratio = jnp.exp(policy.log_prob(t.extras["sample"]) - log_prob)
        advantage, target = self.compute_advantages(t, ratio, value, beyond)
        choice = self.choice_masks(t)
        weight = (choice[0] & choice[1]).astype(jnp.float32) if choice else None
        of_memory = (t.is_done, t.memory) if self.is_recurrent else (None, None)  # the actor's, even if stale
        several = values if self.num_values > 1 else None
        known = log_prob, value, advantage, target
        more = {"ensemble_values": several, "ratio": ratio, "bootstrap_value": beyond, "weight": weight}
        return Batch(t.obs, t.extras["sample"], *known, *of_memory, **more)

    def choice_masks(self, t: Transition) -> tuple[Bool[Array, "steps envs"], Bool[Array, "steps envs"]] | None:
        """Return masks of the steps with several valid actions and of the steps with a known continuation.

        The return after a step is known up to the end of the episode, or up to a step with several valid
        actions, which has a value.

        Args:
            t: Transitions, leaves [steps, envs, ...].

        Returns:
            Both masks, each [steps, envs]; None if every step has several valid actions.
        """
        choice, following = choice_mask(self.observation_space, t), has_choice(self.observation_space, t.next_obs)
        if choice is None:
            return None
        following = jnp.ones_like(choice) if following is None else following
        return choice, jax.vmap(is_known, 1, 1)(t.terminated, _bootstrap_mask(t), choice, following)

    def compute_advantages(
        self,
        transitions: Transition,
        ratio: Float[Array, "steps envs"],
        value: Float[Array, "steps envs"],
        bootstrap_value: Float[Array, "steps envs"],
    ) -> tuple[Float[Array, "steps envs"], Float[Array, "steps envs"]]:
        """Return the advantages and the value targets of trajectories.

        A step with only one valid action has advantage 0; its reward counts for the last step before it with
        several (skip_forced_steps).
        """
        t = replace(transitions, reward=self.reward_scale * transitions.reward)
        next_value = jnp.where(_bootstrap_mask(t), bootstrap_value, jnp.roll(value, -1, 0))
        choice = self.choice_masks(t)
        if choice:
            steps = t.reward, value, bootstrap_value, t.terminated, _bootstrap_mask(t), *choice
            changed = jax.vmap(skip_forced_steps, (*(1,) * len(steps), None), 1)(*steps, self.discount)
            t, value, next_value = replace(t, reward=changed[0]), *changed[1:]
        targets = jax.vmap(self.estimate_advantages, 1, 1)
        advantage, target = targets(t, ratio, value, next_value)
        return advantage * (choice[0] & choice[1]) if choice else advantage, target

    def bootstrap_value(self, params: Params, t: Transition) -> Float[Array, "steps envs"]:
        """Return the values of the successors at truncations and after the last step; 0 elsewhere.

        The network evaluates one such step of every environment at a time.

        Args:
            params: Parameters of the network.
            t: Transitions, leaves [steps, envs, ...].

        Returns:
            Values, shape [steps, envs].
        """
        is_cut = _bootstrap_mask(t)
        place = jnp.cumsum(is_cut, 0) * is_cut - 1  # index of each cut step within its environment; -1 for other steps
        env_index = jnp.arange(is_cut.shape[1])

        def evaluate_successor(i: Array, found: Array) -> Array:
            step = jnp.argmax(place == i, 0)  # the i-th cut step of each environment; step 0, unused, if it has fewer
            now = jax.tree.map(lambda x: x[step, env_index], (t.obs, t.memory, t.next_obs))
            after = self.apply_network("step", params, now[1], now[0])[0]
            asked = self.mean_value(self.apply(params, now[2], after)[1])
            return jnp.where(place == i, asked, found)

        return jax.lax.fori_loop(0, place.max() + 1, evaluate_successor, jnp.zeros_like(t.reward))

    def loss(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the loss on segments of a batch; with a value ensemble, the mean over its members."""
        rows, log_prob, value, entropy = self.evaluate_rows(params, batch)
        if self.num_values == 1:
            return self.loss_of_rows(rows, log_prob, value, entropy)

        def loss_of_value(value: Array, before: Array) -> tuple[Array, Metrics]:
            return self.loss_of_rows(replace(rows, value=before), log_prob, value, entropy)

        return tree.mean(jax.vmap(loss_of_value, -1)(value, rows.ensemble_values))

    def loss_with_rows(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the loss with the current value and probability ratio of each step as metrics, [segments, steps]."""
        (segments, steps), (rows, log_prob, value, entropy) = batch.log_prob.shape, self.evaluate_rows(params, batch)
        loss, metrics = self.loss_of_rows(rows, log_prob, value, entropy)
        of_rows = jax.lax.stop_gradient((value, jnp.exp(log_prob - rows.log_prob)))
        place = lambda x: x.reshape(steps, segments).T if self.is_recurrent else x.reshape(segments, steps)  # noqa: E731
        return loss, metrics | dict(zip(ROW_METRICS, map(place, of_rows), strict=True))

    def evaluate_rows(self, params: Params, batch: Batch) -> tuple[Batch, Array, Array, Array]:
        """Merge segments into rows and evaluate the network on them.

        Args:
            params: Parameters of the network.
            batch: Segments, leaves [segments, steps, ...]; the recurrent state has leaves [segments, ...].

        Returns:
            The rows, leaves [rows, ...], and the log-probabilities, values and entropies on them.
        """
        if not self.is_recurrent:
            rows = tree.merge_axes(batch)
            policy, value = self.apply(params, rows.obs)
            return rows, policy.log_prob(rows.raw_action), value, policy.entropy()
        steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), replace(batch, memory=None))
        _, policy, value = self.apply_sequence(params, steps.obs, batch.memory, steps.done)
        return tree.merge_axes((steps, policy.log_prob(steps.raw_action), value, policy.entropy()))

    def update(self, state: PolicyGradientState, loss: LossFn) -> tuple[PolicyGradientState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, self.learning_rate, self.max_grad_norm)
        return replace(state, actor=actor), metrics


def _bootstrap_mask(t: Transition) -> Bool[Array, "steps envs"]:
    """Return the steps whose successor is not the next row: truncated steps and the last one.

    A terminated step needs no exception, since its successor counts 0 in any case; see `estimate_advantages`.
    """
    return t.truncated.at[-1].set(True)
