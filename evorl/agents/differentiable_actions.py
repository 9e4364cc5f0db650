"""Actions through which the gradient of a critic reaches the outputs of the actor network."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.errors import OptionError
from evorl.networks.distributions import Distribution, Head, sample_straight_through
from evorl.parts import Number
from evorl.spaces import Box, MultiBinary, Space, leaf_spaces, mask_logits
from evorl.types import Key


@dataclass(frozen=True)
class DifferentiableActions:
    """Map from the outputs of an actor network to actions.

    The outputs are logits of discrete actions, or continuous actions before they are bounded. The constructor
    raises OptionError if the action space is neither discrete nor a vector of real numbers.
    """

    observation_space: Space
    action_space: Space

    def __post_init__(self) -> None:
        space = self.action_space
        vector = isinstance(space, Box) and len(space.shape) == 1
        if not (vector or all(not isinstance(leaf, Box | MultiBinary) for leaf in leaf_spaces(space))):
            raise OptionError(
                f"a deterministic policy gradient needs a Box with one axis or discrete actions, not {space}"
            )
        Head(space)

    @property
    def head(self) -> Head:
        """Return the head of the action space, with the number of outputs and the size of each discrete choice."""
        return Head(self.action_space)

    def policy(self, outputs: Array, obs: Any) -> Distribution:
        """Return the distribution of discrete actions, with invalid actions masked."""
        return self.head.distribution(mask_logits(self.observation_space, obs, outputs))

    def sample(self, outputs: Array, obs: Any, key: Key, std: Number) -> Any:
        """Sample discrete actions, or add Gaussian noise to continuous ones and clip them to their bounds.

        `std` is in units of half the action range.
        """
        if not isinstance(self.action_space, Box):
            return self.head.to_action(self.policy(outputs, obs).sample(key))
        noise = std * half_range(self.action_space) * jax.random.normal(key, outputs.shape)
        return jnp.clip(squash_to_bounds(self.action_space, outputs) + noise, *self.action_space.float_bounds)

    def mode(self, outputs: Array, obs: Any) -> Any:
        """Return the most probable discrete actions, or the continuous action without noise."""
        if not isinstance(self.action_space, Box):
            return self.head.to_action(self.policy(outputs, obs).mode())
        return squash_to_bounds(self.action_space, outputs)

    def sample_for_critic(self, outputs: Array, obs: Any, key: Key) -> Float[Array, "*batch features"]:
        """Return actions as the critic's input: sampled and one-hot if discrete, without noise if continuous.

        Gradients pass through a discrete sample by the straight-through Gumbel-softmax estimator.
        """
        if not isinstance(self.action_space, Box):
            return sample_straight_through(
                mask_logits(self.observation_space, obs, outputs), self.head.choice_sizes, key
            )
        return squash_to_bounds(self.action_space, outputs)


def half_range(space: Box) -> np.ndarray:
    """Return half of the range between the bounds, for each action dimension."""
    low, high = space.float_bounds
    return (high - low) / 2


def squash_to_bounds(space: Box, outputs: Array) -> Array:
    """Map network outputs to continuous actions within the bounds, by tanh."""
    low, _ = space.float_bounds
    return jnp.asarray(low + half_range(space) * (1 + jnp.tanh(outputs)))
