"""Networks of a policy and a value: from what one observes, or the value from what only learning knows."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.networks.mlp import ACTIVATIONS, MLP
from evorl.networks.network import Network
from evorl.spaces import Space, get_visible_obs, mask_logits, with_visible_obs
from evorl.types import Key, Memory, Params


class PolicyValue(nn.Module):
    """The numbers of a distribution and a value, or several, [*batch, values], from one trunk or from one each."""

    numbers: int
    num_stds: int
    hidden: tuple[int, ...]
    activation: str
    shared_trunk: bool
    num_values: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array, Array]:
        hidden = self.hidden
        if self.shared_trunk and hidden:
            x = ACTIVATIONS[self.activation](MLP(hidden[:-1], hidden[-1], self.activation, name="trunk")(x))
            hidden = ()
        numbers = MLP(hidden, self.numbers, self.activation, output_scale=0.01, name="policy")(x)
        names = [f"value_{i}" for i in range(self.num_values)] if self.num_values > 1 else ["value"]
        values = jnp.concatenate([MLP(hidden, 1, self.activation, name=name)(x) for name in names], axis=-1)
        log_std = self.param("log_std", nn.initializers.zeros, (self.num_stds,))
        return numbers, log_std, values if self.num_values > 1 else values[..., 0]


def mask_policy_logits(space: Space, obs: Any, outputs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The outputs of PolicyValue with the numbers of illegal choices far below all others."""
    numbers, log_std, value = outputs
    return mask_logits(space, obs, numbers), log_std, value


class PolicyHead(nn.Module):
    """The numbers of a distribution, [*batch, numbers], and the logarithms of its standard deviations."""

    numbers: int
    num_stds: int
    hidden: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array]:
        numbers = MLP(self.hidden, self.numbers, self.activation, output_scale=0.01, name="policy")(x)
        return numbers, self.param("log_std", nn.initializers.zeros, (self.num_stds,))


@dataclass(frozen=True)
class CentralizedNetwork:
    """Two networks with the methods of one: a policy that sees observations, and a value that sees a state.

    Their memories are the two of a pair. The space is PrivilegedObs, or what is legal with it.
    """

    space: Space
    policy: Network
    value: Network

    def init_params(self, key: Key) -> Params:
        """Parameters before any learning."""
        key_policy, key_value = jax.random.split(key)
        return {"policy": self.policy.init_params(key_policy), "value": self.value.init_params(key_value)}

    def apply(self, params: Params, memory: Memory, obs: Any, *ended: Array, method: str) -> tuple[Memory, Any]:
        """What PolicyValue gives, by the method "step" or "sequence" of Network."""
        both = get_visible_obs(self.space, obs)
        given = (memory[0], with_visible_obs(self.space, obs, both["obs"])), (memory[1], both["state"])
        of_policy: Any = self.policy.apply(params["policy"], *given[0], *ended, method=method)
        of_value: Any = self.value.apply(params["value"], *given[1], *ended, method=method)
        (numbers, log_std), value = of_policy[1], of_value[1]
        return (of_policy[0], of_value[0]), mask_policy_logits(self.space, obs, (numbers, log_std, value[..., 0]))
