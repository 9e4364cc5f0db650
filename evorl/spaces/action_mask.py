"""What a network sees of observations that say what is legal, and actions that are."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.spaces.kinds import Discrete, Members, ObsWithActionMask, Space
from evorl.spaces.structure import action_from_indices, groups

MASKED_LOGIT = -1e9  # what a choice is worth that must not be made: less than any other, and finite


def get_visible_space(space: Space) -> Space:
    """What a network sees of a space: all but what is legal."""
    return space.space if isinstance(space, ObsWithActionMask) else space


def get_visible_obs(space: Space, obs: Any) -> Any:
    """What a network sees of observations of a space."""
    return obs["obs"] if isinstance(space, ObsWithActionMask) else obs


def with_visible_space(space: Space, shown: Space) -> Space:
    """The space whose observations show a network something else, and keep what is legal."""
    return ObsWithActionMask(shown, space.choices) if isinstance(space, ObsWithActionMask) else shown


def with_visible_obs(space: Space, obs: Any, value: Any) -> Any:
    """Observations of a space that show a network a value in the place of what it saw."""
    return obs | {"obs": value} if isinstance(space, ObsWithActionMask) else value


def mask_logits(space: Space, obs: Any, numbers: jax.Array) -> jax.Array:
    """The numbers [*batch, choices] of an action's choices, MASKED_LOGIT where observations of a space say so."""
    if not isinstance(space, ObsWithActionMask):
        return numbers
    legal = obs["legal"]
    number = np.repeat(np.arange(len(space.choices)), space.choices)
    of_number = jnp.asarray(number[:, None] == np.arange(len(space.choices)), jnp.float32)
    none = (legal.astype(jnp.float32) @ of_number)[..., number] == 0
    return jnp.where(legal | none, numbers, MASKED_LOGIT)


def has_choice(space: Space, obs: Any) -> Any:
    """Return whether several actions are legal after observations, [*batch]; None where a space does not tell."""
    if not isinstance(space, ObsWithActionMask):
        return None
    parts = jnp.split(obs["legal"], np.cumsum(space.choices)[:-1], axis=-1)
    several = [(part.sum(-1) != 1) & (n > 1) for part, n in zip(parts, space.choices, strict=True)]
    return jnp.any(jnp.stack(several), axis=0)


def random_action(action_space: Space, observation_space: Space, obs: Any, key: jax.Array) -> Any:
    """A random action after one observation, a legal one where that says what is; of a game one for each member."""
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
    """A key for each of n, [n]: the key itself for one, so that what one does alone it does as one of one."""
    return key[None] if n == 1 else jax.random.split(key, n)
