"""Action masks in observations: masked logits, random valid actions, and the observation without its mask."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.spaces.kinds import Discrete, Members, ObsWithActionMask, Space
from evorl.spaces.structure import action_from_indices, groups

MASKED_LOGIT = -1e9  # logit of an invalid choice: lower than any other, but finite


def get_visible_space(space: Space) -> Space:
    """Return the part of an observation space that a network receives, which excludes the action mask.

    Args:
        space: Observation space.
    """
    return space.space if isinstance(space, ObsWithActionMask) else space


def get_visible_obs(space: Space, obs: Any) -> Any:
    """Return the part of observations that a network receives, which excludes the action mask.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
    """
    return obs["obs"] if isinstance(space, ObsWithActionMask) else obs


def with_visible_space(space: Space, shown: Space) -> Space:
    """Return the observation space with another visible part and the same action mask.

    Args:
        space: Observation space.
        shown: New space of the visible part.
    """
    return ObsWithActionMask(shown, space.choices) if isinstance(space, ObsWithActionMask) else shown


def with_visible_obs(space: Space, obs: Any, value: Any) -> Any:
    """Return observations with another visible part and the same action mask.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
        value: New value of the visible part.
    """
    return obs | {"obs": value} if isinstance(space, ObsWithActionMask) else value


def mask_logits(space: Space, obs: Any, numbers: jax.Array) -> jax.Array:
    """Return the logits of an action with invalid choices set to MASKED_LOGIT.

    If the mask allows no choice of an action dimension, all its choices are valid. Without an action mask,
    the logits are returned unchanged.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
        numbers: Logits of all action dimensions, concatenated, shape [*batch, choices].

    Returns:
        Masked logits, shape [*batch, choices].
    """
    if not isinstance(space, ObsWithActionMask):
        return numbers
    legal = obs["legal"]
    number = np.repeat(np.arange(len(space.choices)), space.choices)
    of_number = jnp.asarray(number[:, None] == np.arange(len(space.choices)), jnp.float32)
    none = (legal.astype(jnp.float32) @ of_number)[..., number] == 0
    return jnp.where(legal | none, numbers, MASKED_LOGIT)


def has_choice(space: Space, obs: Any) -> Any:
    """Return whether more than one action is valid, shape [*batch].

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].

    Returns:
        A boolean array, or None if the space has no action mask.
    """
    if not isinstance(space, ObsWithActionMask):
        return None
    parts = jnp.split(obs["legal"], np.cumsum(space.choices)[:-1], axis=-1)
    several = [(part.sum(-1) != 1) & (n > 1) for part, n in zip(parts, space.choices, strict=True)]
    return jnp.any(jnp.stack(several), axis=0)


def random_action(action_space: Space, observation_space: Space, obs: Any, key: jax.Array) -> Any:
    """Sample a random action, which is valid if the observation has an action mask.

    In a game, one action is sampled for each agent.

    Args:
        action_space: Action space.
        observation_space: Observation space.
        obs: One observation, without a batch axis.
        key: Random key.
    """
    if isinstance(action_space, Members):
        assert isinstance(observation_space, Members)
        of_member = partial(random_action, action_space.space, observation_space.space)
        return jax.vmap(of_member)(obs, split_key(key, action_space.n))
    if teams := groups(action_space):
        parts, keys = groups(observation_space), split_key(key, len(teams))
        drawn = zip(teams.items(), keys, strict=True)
        return {name: random_action(of, parts[name], obs[name], key) for (name, of), key in drawn}
    if not isinstance(observation_space, ObsWithActionMask):
        return action_space.sample(key)
    numbers = observation_space.choices
    logits = mask_logits(observation_space, obs, jnp.zeros(sum(numbers)))
    keys, parts = jax.random.split(key, len(numbers)), jnp.split(logits, np.cumsum(numbers)[:-1])
    indices = jnp.stack([jax.random.categorical(key, part) for key, part in zip(keys, parts, strict=True)])
    return action_from_indices(action_space, indices[0] if isinstance(action_space, Discrete) else indices)


def split_key(key: jax.Array, n: int) -> jax.Array:
    """Split a key into n keys, shape [n]; for n = 1, the key itself is used.

    A group of one agent therefore draws the same random numbers as a single agent.

    Args:
        key: Random key.
        n: Number of keys.
    """
    return key[None] if n == 1 else jax.random.split(key, n)
