"""Statistics of the completed episodes of each level, from rollouts [steps, envs].

Each environment starts with a new episode and plays one level. The environments of a level are consecutive,
envs = levels * repeats, and all episodes of a level count equally. Steps of an episode that did not end are
not used. The mean over no episodes is NaN.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num


def episode_lengths(ended: Bool[Array, "steps envs"]) -> Int[Array, "steps envs"]:
    """Return the length of the episode that each step belongs to, 0 if the episode did not end."""
    steps = len(ended)
    step = jnp.arange(steps, dtype=jnp.int32)[:, None]
    end = jax.lax.cummin(jnp.where(ended, step, steps), axis=0, reverse=True)
    following = jax.lax.cummax(jnp.where(ended, step + 1, 0), axis=0)  # first step of the episode after this step
    begin = jnp.concatenate([jnp.zeros_like(following[:1]), following[:-1]])
    return jnp.where(end < steps, end - begin + 1, 0)


def time_mean(
    x: Num[Array, "steps envs"], ended: Bool[Array, "steps envs"], repeats: int = 1
) -> Float[Array, " levels"]:
    """Return the mean of x over the steps of an episode, averaged over the episodes of each level."""
    length = episode_lengths(ended)
    return _mean_over_episodes(jnp.where(length > 0, x / jnp.maximum(length, 1), 0), ended, repeats)


def mean_return(
    reward: Float[Array, "steps envs"], ended: Bool[Array, "steps envs"], repeats: int = 1
) -> Float[Array, " levels"]:
    """Return the mean undiscounted return of the episodes of each level."""
    return _mean_over_episodes(jnp.where(episode_lengths(ended) > 0, reward, 0), ended, repeats)


def event_rate(
    happened: Bool[Array, "steps envs"], ended: Bool[Array, "steps envs"], repeats: int = 1
) -> Float[Array, " levels"]:
    """Return the fraction of the episodes of each level whose last step has `happened`."""
    return _mean_over_episodes((happened & ended).astype(jnp.float32), ended, repeats)


def running_returns(reward: Float[Array, "steps envs"], ended: Bool[Array, "steps envs"]) -> Float[Array, "steps envs"]:
    """Return the undiscounted return of each step's episode so far; it is complete at the last step of the episode."""
    begins = jnp.concatenate([jnp.ones_like(ended[:1]), ended[:-1]])

    def join(before: tuple[Array, Array], after: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.where(after[1], after[0], before[0] + after[0]), before[1] | after[1]

    return jax.lax.associative_scan(join, (reward, begins))[0]


def highest_return(
    reward: Float[Array, "steps envs"], ended: Bool[Array, "steps envs"], repeats: int = 1
) -> Float[Array, " levels"]:
    """Return the highest undiscounted return of an episode of each level, -inf if none ended."""
    return jnp.where(ended, running_returns(reward, ended), -jnp.inf).max(0).reshape(-1, repeats).max(1)


def _mean_over_episodes(
    x: Float[Array, "steps envs"], ended: Bool[Array, "steps envs"], repeats: int
) -> Float[Array, " levels"]:
    """Return the sum of x over the environments of each level, divided by the number of its completed episodes."""
    total, episodes = (each.sum(0).reshape(-1, repeats).sum(1) for each in (x, ended))
    return jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)
