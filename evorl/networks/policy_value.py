"""Networks of a policy and a value function, from the same observations or with a privileged state for the value."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.networks.mlp import ACTIVATIONS, MLP
from evorl.networks.network import Network
from evorl.spaces import Space, mask_logits
from evorl.types import Key, Memory, Params

MIN_STD = 1e-3  # smallest standard deviation that depends on the observation


class PolicyValue(nn.Module):
    """Policy and value networks, with a shared trunk or separate ones.

    The outputs are the parameters of the distribution, the log standard deviations, and the value [*batch] or
    an ensemble of values [*batch, values]. The log standard deviations are parameters [num_stds], or outputs
    [*batch, num_stds] of the policy network. `value_hidden` None stands for `hidden`.
    """

    num_parameters: int
    num_stds: int
    hidden: tuple[int, ...]
    activation: str
    shared_trunk: bool
    num_values: int = 1
    state_dependent_std: bool = False
    value_hidden: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array, Array]:
        hidden = self.hidden
        of_value = hidden if self.value_hidden is None else self.value_hidden
        if self.shared_trunk and hidden:
            x = ACTIVATIONS[self.activation](MLP(hidden[:-1], hidden[-1], self.activation, name="trunk")(x))
            hidden = of_value = ()
        parameters, log_std = _apply_policy(self, x, hidden)
        names = [f"value_{i}" for i in range(self.num_values)] if self.num_values > 1 else ["value"]
        values = jnp.concatenate([MLP(of_value, 1, self.activation, name=name)(x) for name in names], axis=-1)
        return parameters, log_std, values if self.num_values > 1 else values[..., 0]


def mask_policy_logits(space: Space, obs: Any, outputs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Mask the logits of invalid actions in the outputs of PolicyValue."""
    parameters, log_std, value = outputs
    return mask_logits(space, obs, parameters), log_std, value


class PolicyHead(nn.Module):
    """Policy network; its outputs are the parameters of a distribution and the log standard deviations."""

    num_parameters: int
    num_stds: int
    hidden: tuple[int, ...]
    activation: str
    state_dependent_std: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array]:
        return _apply_policy(self, x, self.hidden)


def _apply_policy(
    module: PolicyValue | PolicyHead, x: Float[Array, "*batch features"], hidden: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return the parameters of the distribution and the log standard deviations, with submodules of `module`."""
    size, stds = module.num_parameters, module.num_stds
    if not module.state_dependent_std:
        parameters = MLP(hidden, size, module.activation, output_scale=0.01, name="policy")(x)
        return parameters, module.param("log_std", nn.initializers.zeros, (stds,))
    both = MLP(hidden, size + stds, module.activation, output_scale=0.01, name="policy")(x)
    return both[..., :size], jnp.log(nn.softplus(both[..., size:]) + MIN_STD)


@dataclass(frozen=True)
class CentralizedNetwork:
    """Policy network on observations and value network on a privileged state, with the methods of one Network.

    The memory is the pair of theirs. The space is PrivilegedObs, with or without an action mask.
    """

    space: Space
    policy: Network
    value: Network

    def init_params(self, key: Key) -> Params:
        """Initialize the parameters of both networks."""
        key_policy, key_value = jax.random.split(key)
        return {"policy": self.policy.init_params(key_policy), "value": self.value.init_params(key_value)}

    def apply(self, params: Params, memory: Memory, obs: Any, *ended: Array, method: str) -> tuple[Memory, Any]:
        """Return the memory and the outputs of PolicyValue, by the method "step" or "sequence" of Network."""
        of_policy: Any = self.policy.apply(params["policy"], memory[0], obs, *ended, method=method)
        of_value: Any = self.value.apply(params["value"], memory[1], obs, *ended, method=method)
        (parameters, log_std), value = of_policy[1], of_value[1]
        return (of_policy[0], of_value[0]), mask_policy_logits(self.space, obs, (parameters, log_std, value[..., 0]))
