"""Networks of a policy and a value: from what one observes, or the value from what only learning knows."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.networks.mlp import ACTIVATIONS, MLP
from evorl.networks.network import Network
from evorl.spaces import Space, masked, seen, shown
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


def masked_policy(space: Space, obs: Any, outputs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The outputs of PolicyValue with the numbers of illegal choices far below all others."""
    numbers, log_std, value = outputs
    return masked(space, obs, numbers), log_std, value


class PolicyAlone(nn.Module):
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
class Centralized:
    """Two networks with the methods of one: a policy that sees observations, and a value that sees a state.

    Their memories are the two of a pair. The space is Privileged, or what is legal with it.
    """

    space: Space
    policy: Network
    value: Network

    def fresh(self, key: Key) -> Params:
        """Parameters before any learning."""
        key_policy, key_value = jax.random.split(key)
        return {"policy": self.policy.fresh(key_policy), "value": self.value.fresh(key_value)}

    def apply(self, params: Params, memory: Memory, obs: Any, *ended: Array, method: str) -> tuple[Memory, Any]:
        """What PolicyValue gives, by the method "step" or "sequence" of Network."""
        both = seen(self.space, obs)
        given = (memory[0], shown(self.space, obs, both["obs"])), (memory[1], both["state"])
        of_policy: Any = self.policy.apply(params["policy"], *given[0], *ended, method=method)
        of_value: Any = self.value.apply(params["value"], *given[1], *ended, method=method)
        (numbers, log_std), value = of_policy[1], of_value[1]
        return (of_policy[0], of_value[0]), masked_policy(self.space, obs, (numbers, log_std, value[..., 0]))
