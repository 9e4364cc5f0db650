"""Distributions of the initial states of the v5 tasks of Gymnasium 1.3, in JAX."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.types import Key

State: TypeAlias = tuple[Array, Array]  # qpos [nq], qvel [nv]
NORMAL_VELOCITIES = ("Ant-v5", "HalfCheetah-v5", "InvertedDoublePendulum-v5")  # those of other tasks are uniform
REACH, MIN_DISTANCE = 0.2, 0.17  # of Reacher's target from the center; of Pusher's object from the goal, m
ARM_POSITION, ARM_VELOCITY = 0.1, 0.005  # largest noise of Reacher and Pusher, rad and rad/s


def sample_initial_state(name: str, env: Any, key: Key) -> State:
    """Sample the initial state of a task.

    Args:
        name: Id of the task in Gymnasium.
        env: Gymnasium's environment, for its options and its model.
        key: Random key.

    Returns:
        Positions qpos [nq] and velocities qvel [nv], float32.

    Source: `reset_model` of each task in Gymnasium 1.3.
    """
    k_position, k_velocity, k_goal = jax.random.split(key, 3)
    qpos, qvel = jnp.float32(env.init_qpos), jnp.float32(env.init_qvel)
    if name == "Reacher-v5":
        qpos += _sample_uniform(k_position, qpos.shape, ARM_POSITION)
        target = sample_until(k_goal, _propose_target, lambda at: jnp.linalg.norm(at) < REACH)
        return qpos.at[-2:].set(target), (qvel + _sample_uniform(k_velocity, qvel.shape, ARM_VELOCITY)).at[-2:].set(0)
    if name == "Pusher-v5":
        thing = sample_until(k_goal, _propose_object, lambda at: jnp.linalg.norm(at) > MIN_DISTANCE)
        qpos = qpos.at[-4:-2].set(thing).at[-2:].set(0)
        return qpos, (qvel + _sample_uniform(k_velocity, qvel.shape, ARM_VELOCITY)).at[-4:].set(0)
    scale = env._reset_noise_scale
    if name in NORMAL_VELOCITIES:
        noise = scale * jax.random.normal(k_velocity, qvel.shape)
    else:
        noise = _sample_uniform(k_velocity, qvel.shape, scale)
    return qpos + _sample_uniform(k_position, qpos.shape, scale), qvel + noise


def sample_until(key: Key, propose: Callable[[Key], Array], accepts: Callable[[Array], Array]) -> Array:
    """Sample by rejection: propose points until one is accepted."""

    def propose_again(carry: tuple[Key, Array]) -> tuple[Key, Array]:
        key, now = jax.random.split(carry[0])
        return key, propose(now)

    return jax.lax.while_loop(lambda carry: ~accepts(carry[1]), propose_again, propose_again((key, jnp.zeros(2))))[1]


def _sample_uniform(key: Key, shape: tuple[int, ...], limit: float) -> Float[Array, "..."]:
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _propose_target(key: Key) -> Float[Array, "2"]:
    return _sample_uniform(key, (2,), REACH)


def _propose_object(key: Key) -> Float[Array, "2"]:
    return jax.random.uniform(key, (2,), minval=jnp.array([-0.3, -0.2]), maxval=jnp.array([0.0, 0.2]))
