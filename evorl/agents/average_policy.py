"""A policy that learns how often each choice was made."""

from dataclasses import dataclass, replace
from typing import Any

from flax import struct
from jaxtyping import Array, Float, Int

from evorl.agents.train_state import ADAM, LEARNING_RATE_PRIOR, LossFn, Optimizer, TrainState
from evorl.errors import OptionError
from evorl.hyperparameters import Number, hyperparameter
from evorl.networks.distributions import Categorical
from evorl.networks.mlp import MLP, check_layers
from evorl.networks.network import FLAT, Encoder, Network
from evorl.spaces import Discrete, Space, action_from_indices, action_to_index, mask_logits
from evorl.types import Hyperparams, Key, Memory, Metrics, Params


@struct.dataclass
class AveragePolicyHyperparams:
    """Those of its gradient steps."""

    learning_rate: Number = hyperparameter(1e-3, 0, 1, "learning rate of the average policy", LEARNING_RATE_PRIOR)
    max_grad_norm: Number = hyperparameter(10.0, 0, about="its gradients are clipped to this norm")


@struct.dataclass
class AveragePolicyState:
    actor: TrainState


@dataclass(frozen=True)
class AveragePolicy:
    """A policy that imitates choices by cross entropy, and so draws them as often as they were made (arXiv:1603.01121).

    It has no other greedy action than one that is drawn.
    """

    observation_space: Space
    action_space: Space
    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    encoder: Encoder = FLAT
    optimizer: Optimizer = ADAM

    def __post_init__(self) -> None:
        check_layers(self.hidden)
        if not isinstance(self.action_space, Discrete):
            raise OptionError(f"AveragePolicy needs an action that is one choice, not {self.action_space}")

    def hyperparams(self) -> AveragePolicyHyperparams:
        return AveragePolicyHyperparams()

    @property
    def network(self) -> Network:
        """Logits from observations."""
        assert isinstance(self.action_space, Discrete)
        body = MLP(self.hidden, self.action_space.n, layer_norm=self.layer_norm)
        return Network(self.observation_space, body, self.encoder, mask_fn=mask_logits)

    def init(self, key: Key, hyperparams: Hyperparams) -> AveragePolicyState:
        del hyperparams
        return AveragePolicyState(
            TrainState.create(self.network.init_params(key), has_target=False, optimizer=self.optimizer)
        )

    def initial_memory(self) -> Memory:
        return ()

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Array, Memory, dict[str, Any]]:
        """A choice that is drawn from the policy."""
        del hyperparams
        return action_from_indices(self.action_space, self.distribution(params, obs).sample(key)), memory, {}

    mode = act

    def distribution(self, params: Params, obs: Any) -> Categorical:
        """Of the choices after observations."""
        return Categorical(self.network.apply(params, obs))

    def action_probabilities(self, params: Params, obs: Any, hyperparams: Hyperparams) -> Float[Array, " choices"]:
        del hyperparams
        return self.distribution(params, obs).probs()

    def loss(self, params: Params, obs: Any, action: Int[Array, " rows"]) -> tuple[Float[Array, ""], Metrics]:
        """-log pi(a|s), mean over rows (eq. 2 of the paper)."""
        loss = -self.distribution(params, obs).log_prob(action_to_index(self.action_space, action)).mean()
        return loss, {"average_loss": loss}

    def update(
        self, state: AveragePolicyState, loss: LossFn, hyperparams: AveragePolicyHyperparams
    ) -> tuple[AveragePolicyState, Metrics]:
        actor, metrics = state.actor.apply_gradients(loss, hyperparams.learning_rate, hyperparams.max_grad_norm)
        return replace(state, actor=actor), metrics
