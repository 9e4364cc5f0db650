"""Actions, real or choices, through which a critic's gradient reaches the numbers that they come from."""

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
    """What the numbers of a network mean after observations: logits of choices, or a real action before its bounds.

    Raises OptionError where actions are neither.
    """

    observation_space: Space
    action_space: Space

    def __post_init__(self) -> None:
        space = self.action_space
        vector = isinstance(space, Box) and len(space.shape) == 1
        if not (vector or all(not isinstance(leaf, Box | MultiBinary) for leaf in leaf_spaces(space))):
            raise OptionError(f"a critic's gradient needs vectors of real numbers, or choices, not {space}")
        Head(space)

    @property
    def head(self) -> Head:
        """How many numbers there are, and what choices are."""
        return Head(self.action_space)

    def policy(self, numbers: Array, obs: Any) -> Distribution:
        """Of choices, those that are not legal left out."""
        return self.head.distribution(mask_logits(self.observation_space, obs, numbers))

    def sample(self, numbers: Array, obs: Any, key: Key, std: Number) -> Any:
        """Choices that are drawn, or a real action with normal noise, whose std is in half ranges."""
        if not isinstance(self.action_space, Box):
            return self.head.to_action(self.policy(numbers, obs).sample(key))
        noise = std * half_range(self.action_space) * jax.random.normal(key, numbers.shape)
        return jnp.clip(squash_to_bounds(self.action_space, numbers) + noise, *self.action_space.bounds)

    def mode(self, numbers: Array, obs: Any) -> Any:
        """The likeliest choices, or the real action."""
        if not isinstance(self.action_space, Box):
            return self.head.to_action(self.policy(numbers, obs).mode())
        return squash_to_bounds(self.action_space, numbers)

    def sample_for_critic(self, numbers: Array, obs: Any, key: Key) -> Float[Array, "*batch features"]:
        """Choices that are drawn, one-hot, or the real action, as a critic sees them."""
        if not isinstance(self.action_space, Box):
            return sample_straight_through(
                mask_logits(self.observation_space, obs, numbers), self.head.choice_sizes, key
            )
        return squash_to_bounds(self.action_space, numbers)


def half_range(space: Box) -> np.ndarray:
    """Half of what lies between the bounds, of each number."""
    low, high = space.bounds
    return (high - low) / 2


def squash_to_bounds(space: Box, numbers: Array) -> Array:
    """The real action that numbers stand for."""
    low, _ = space.bounds
    return jnp.asarray(low + half_range(space) * (1 + jnp.tanh(numbers)))
