"""Parts of observations: what a policy sees, what a value function sees, and action masks."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.spaces.kinds import Dict, Discrete, Members, ObsWithActionMask, PrivilegedObs, Space
from evorl.spaces.structure import action_from_indices, groups, to_shape_structs

MASKED_LOGIT = -1e9  # logit of an invalid choice: lower than any other, but finite
WITH_PARTS = (ObsWithActionMask, PrivilegedObs)  # spaces of observations with a part that no policy sees


def get_visible_space(space: Space) -> Space:
    """Return the part of an observation space that a policy sees, without action mask and privileged state.

    Args:
        space: Observation space.
    """
    return get_visible_space(space.space) if isinstance(space, WITH_PARTS) else space


def get_visible_obs(space: Space, obs: Any) -> Any:
    """Return the part of observations that a policy sees, without action mask and privileged state.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
    """
    return get_visible_obs(space.space, obs["obs"]) if isinstance(space, WITH_PARTS) else obs


def get_value_space(space: Space) -> Space:
    """Return the part of an observation space that a value function sees.

    It is the privileged state of a PrivilegedObs, else the part that a policy sees.

    Args:
        space: Observation space.
    """
    inside = space.space if isinstance(space, ObsWithActionMask) else space
    return inside.state if isinstance(inside, PrivilegedObs) else inside


def get_value_obs(space: Space, obs: Any) -> Any:
    """Return the part of observations that a value function sees.

    It is the privileged state of a PrivilegedObs, else the part that a policy sees.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
    """
    inside, obs = (space.space, obs["obs"]) if isinstance(space, ObsWithActionMask) else (space, obs)
    return obs["state"] if isinstance(inside, PrivilegedObs) else obs


def has_privileged_state(space: Space) -> bool:
    """Return whether value functions see a privileged state in observations of a space.

    Args:
        space: Observation space.
    """
    return isinstance(space.space if isinstance(space, ObsWithActionMask) else space, PrivilegedObs)


def get_policy_space(space: Space) -> Space:
    """Return an observation space without its privileged state: {"obs": observation} in place of a PrivilegedObs.

    Args:
        space: Observation space.
    """
    match space:
        case ObsWithActionMask():
            return replace(space, space=get_policy_space(space.space))
        case PrivilegedObs():
            return Dict({"obs": space.space})
    return space


def get_policy_obs(space: Space, obs: Any) -> Any:
    """Return observations without their privileged state, as values of `get_policy_space`.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...], with or without the privileged state.
    """
    match space:
        case ObsWithActionMask():
            return {name: get_policy_obs(space.space, x) if name == "obs" else x for name, x in obs.items()}
        case PrivilegedObs():
            return {name: x for name, x in obs.items() if name != "state"}
    return obs


def fill_privileged_state(space: Space, obs: Any) -> Any:
    """Return one observation with a privileged state of zeros, for a policy, which does not see it.

    Args:
        space: Observation space.
        obs: Observation without privileged state, a value of `get_policy_space`.
    """
    match space:
        case ObsWithActionMask():
            return obs | {"obs": fill_privileged_state(space.space, obs["obs"])}
        case PrivilegedObs():
            return obs | {"state": jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), to_shape_structs(space.state))}
    return obs


def with_visible_space(space: Space, shown: Space) -> Space:
    """Return the observation space with another visible part, and the same action mask and privileged state.

    Args:
        space: Observation space.
        shown: New space of the visible part.
    """
    return replace(space, space=with_visible_space(space.space, shown)) if isinstance(space, WITH_PARTS) else shown


def with_visible_obs(space: Space, obs: Any, value: Any) -> Any:
    """Return observations with another visible part, and the same action mask and privileged state.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
        value: New value of the visible part.
    """
    return obs | {"obs": with_visible_obs(space.space, obs["obs"], value)} if isinstance(space, WITH_PARTS) else value


def mask_logits(space: Space, obs: Any, logits: jax.Array) -> jax.Array:
    """Return the logits of an action with invalid choices set to MASKED_LOGIT.

    If the mask allows no choice of an action dimension, all its choices are valid. Without an action mask,
    the logits are returned unchanged.

    Args:
        space: Observation space.
        obs: Observations, leaves [*batch, ...].
        logits: Logits of all action dimensions, concatenated, shape [*batch, choices].

    Returns:
        Masked logits, shape [*batch, choices].
    """
    if not isinstance(space, ObsWithActionMask):
        return logits
    legal = obs["legal"]
    number = np.repeat(np.arange(len(space.choices)), space.choices)
    of_number = jnp.asarray(number[:, None] == np.arange(len(space.choices)), jnp.float32)
    none = (legal.astype(jnp.float32) @ of_number)[..., number] == 0
    return jnp.where(legal | none, logits, MASKED_LOGIT)


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
