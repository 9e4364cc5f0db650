"""An on-policy agent: a stochastic policy and a value, which learn by the losses of an objective."""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import hyperparameters
from evorl.agents.ppo import PPO
from evorl.agents.train_state import Loss, TrainState
from evorl.networks.distributions import Distribution, Head
from evorl.networks.features import features, num_features
from evorl.networks.mlp import ACTIVATIONS, MLP, check_layers
from evorl.spaces import Space
from evorl.types import Batch, Hyperparams, Key, Memory, Metrics, Params, Transition


@runtime_checkable
class Objective(Protocol):
    """What is to be learned, as equations on arrays that know no network."""

    def targets(
        self,
        transitions: Transition,
        ratio: Array,
        value: Array,
        next_value: Array,
        hyperparams: Hyperparams,
    ) -> tuple[Array, Array]:
        """Of one trajectory [num_steps], the advantages and the value's targets; ratio is policy over behaviour."""
        ...

    def loss(
        self, batch: Batch, log_prob: Array, value: Array, entropy: Array, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The loss [] on rows of a batch; log_prob, value and entropy [rows] are those of the policy that learns."""
        ...

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        """Whether to leave out the epochs still to come, from the metrics of the last one."""
        ...


class PolicyValue(nn.Module):
    """The numbers of a distribution and a value, from one trunk or from two."""

    numbers: int
    num_stds: int
    hidden: tuple[int, ...]
    activation: str
    shared_trunk: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array, Float[Array, "*batch"]]:
        hidden = self.hidden
        if self.shared_trunk and hidden:
            x = ACTIVATIONS[self.activation](MLP(hidden[:-1], hidden[-1], self.activation, name="trunk")(x))
            hidden = ()
        numbers = MLP(hidden, self.numbers, self.activation, output_scale=0.01, name="policy")(x)
        value = MLP(hidden, 1, self.activation, name="value")(x)
        log_std = self.param("log_std", nn.initializers.zeros, (self.num_stds,))
        return numbers, log_std, value[..., 0]


@struct.dataclass
class PolicyGradientState:
    actor: TrainState  # policy and value; it has no target


@dataclass(frozen=True)
class PolicyGradient:
    """A policy and a value with the objective PPO, A2C or IMPALA.

    Without hidden layers both are linear. Real actions are drawn from the distribution named, whose standard deviations
    are parameters.
    """

    observation_space: Space
    action_space: Space
    objective: Objective = field(default_factory=PPO)
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "tanh"
    shared_trunk: bool = False
    distribution: str = "tanh_normal"

    def __post_init__(self) -> None:
        check_layers(self.hidden, self.activation)
        Head(self.action_space, self.distribution)

    def hyperparams(self) -> Hyperparams:
        return hyperparameters.of(self.objective)

    @property
    def head(self) -> Head:
        """From the numbers of the policy to a distribution, and from its samples to actions."""
        return Head(self.action_space, self.distribution)

    @property
    def network(self) -> PolicyValue:
        """The numbers of the distribution and a value from features."""
        return PolicyValue(self.head.size, self.head.num_stds, self.hidden, self.activation, self.shared_trunk)

    def init(self, key: Key, hyperparams: Hyperparams) -> PolicyGradientState:
        del hyperparams
        params = self.network.init(key, jnp.zeros(num_features(self.observation_space)))
        return PolicyGradientState(TrainState.fresh(params, follows=False))

    def memory(self) -> Memory:
        return ()

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """An action drawn from the policy; extras hold the sample that it comes from."""
        del hyperparams
        sample = self.apply(params, obs)[0].sample(key)
        return self.head.action(sample), memory, {"sample": sample}

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        del key, hyperparams
        sample = self.apply(params, obs)[0].mode()
        return self.head.action(sample), memory, {"sample": sample}

    def apply(self, params: Params, obs: Any) -> tuple[Distribution, Float[Array, "*batch"]]:
        """The distribution of samples and the value, each of a batch of observations."""
        outputs: Any = self.network.apply(params, features(self.observation_space, obs))
        numbers, log_std, value = outputs
        return self.head.distribution(numbers, log_std), value

    def batch(self, params: Params, behaviour: Params, transitions: Transition, hyperparams: Hyperparams) -> Batch:
        """What the losses take, leaves [num_steps, num_envs, ...], of transitions that behaviour has collected."""
        t = replace(transitions, reward=hyperparams.reward_scale * transitions.reward)
        policy, value = self.apply(params, t.obs)
        next_value = self.apply(params, t.next_obs)[1]
        log_prob = policy.log_prob(t.extras["sample"])
        acted = log_prob if behaviour is params else self.apply(behaviour, t.obs)[0].log_prob(t.extras["sample"])

        ratio = jnp.exp(log_prob - acted)
        each_slot = jax.vmap(self.objective.targets, (1, 1, 1, 1, None), 1)
        advantage, target = each_slot(t, ratio, value, next_value, hyperparams)
        return Batch(t.obs, t.extras["sample"], acted, value, advantage, target)

    def loss(self, params: Params, batch: Batch, hyperparams: Hyperparams) -> tuple[Array, Metrics]:
        """That of the objective on rows of a batch [rows, ...]."""
        policy, value = self.apply(params, batch.obs)
        return self.objective.loss(batch, policy.log_prob(batch.sample), value, policy.entropy(), hyperparams)

    def update(
        self, state: PolicyGradientState, loss: Loss, hyperparams: Hyperparams
    ) -> tuple[PolicyGradientState, Metrics]:
        actor, metrics = state.actor.descend(loss, hyperparams.learning_rate, hyperparams.max_grad_norm)
        return replace(state, actor=actor), metrics

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        return self.objective.early_stop(metrics, hyperparams)
