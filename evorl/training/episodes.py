"""Complete episodes of a trained policy: their returns, and pictures of one."""

import contextlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree, vector_env
from evorl.envs import render
from evorl.envs.render import Drawable
from evorl.envs.wrappers import unwrap
from evorl.keys import key_from_seed
from evorl.training.policy import Policy
from evorl.types import Env, Memory, State
from evorl.vector_env import EnvBatch, EnvInstance, EpisodeStats, ResetStarts
from evorl.vector_env.env_batch import BatchPolicyFn as VectorPolicy

STEPS_PER_BLOCK = 1_000  # of episodes that are recorded, so that memory grows with their length, not with its limit


def evaluate_policy(policy: Policy, episodes: int, seed: int = 0, explores: bool = False) -> EpisodeStats:
    """Play new episodes in parallel and return their statistics, leaves [episodes]."""
    return play_episodes(
        policy.env, policy.env_params, jax.vmap(policy.as_policy_fn(explores)), policy.memory, episodes, seed
    )


def play_episodes(
    env: Env, env_params: Any, policy: VectorPolicy, memory: Memory, episodes: int, seed: int
) -> EpisodeStats:
    """Play one complete episode in each of `episodes` parallel environments and return their statistics."""

    @jax.jit
    def run(key: jax.Array) -> EpisodeStats:
        return vector_env.run_episodes(EnvBatch(env, env_params, memory, episodes), policy, ResetStarts(), key)

    return jax.device_get(run(key_from_seed(seed)))


def scan_until(
    scan: Callable[[Any, jax.Array], tuple[Any, Any]], carry: Any, keys: jax.Array, is_over: Callable[[Any], Any]
) -> Any:
    """Scan over keys in blocks, until the outputs are complete.

    Args:
        scan: Compiled scan of a step: function of the carry and keys; returns the carry and the outputs.
        carry: Initial carry.
        keys: Keys of the steps, [steps].
        is_over: Function of the outputs of a block; returns whether it is the last one.

    Returns:
        The outputs of the steps on the host, leaves [steps so far, ...].
    """
    blocks: list[Any] = []
    for i in range(0, len(keys), STEPS_PER_BLOCK):
        carry, found = scan(carry, keys[i : i + STEPS_PER_BLOCK])
        blocks.append(jax.device_get(found))
        if is_over(blocks[-1]):
            break

    def join(*leaves: Any) -> Any:
        return (np if isinstance(leaves[0], np.ndarray) else jnp).concatenate(leaves)  # random keys need jnp

    return jax.tree.map(join, *blocks)


def draw_episode(policy: Policy, folder: Path, seed: int = 0, explores: bool = False) -> list[Path]:
    """Write pictures of one episode, including its final state, to a folder, and return their paths.

    The list is empty if the environment cannot be rendered.
    """
    env, env_params, act = policy.env, policy.env_params, policy.as_policy_fn(explores)
    if not isinstance(unwrap(env), Drawable) and render.get_fps(env) is None:
        print(f"no pictures: {type(unwrap(env)).__name__} cannot be rendered", file=sys.stderr)
        return []

    world = EnvBatch(env, env_params, policy.memory, 1)
    key_start, key_play = jax.random.split(key_from_seed(seed))

    @jax.jit
    def begin(key: jax.Array) -> EnvInstance:
        return world.init_envs(world.reset(jax.random.split(key, 1)))

    def step(envs: EnvInstance, key: jax.Array) -> tuple[EnvInstance, tuple[jax.Array, State]]:
        after, transition = world.interact(jax.vmap(act), envs, key[None])
        return after, (transition.is_done[0], tree.index(after.env_state, 0))

    first, keys = begin(key_start), jax.random.split(key_play, env.max_episode_steps)
    ended, states = scan_until(jax.jit(partial(jax.lax.scan, step)), first, keys, lambda x: x[0].any())
    length = int(ended.argmax()) + 1 if ended.any() else len(ended)
    start = jax.device_get(tree.index(first.env_state, 0))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as new:  # does not write through links
        pictures = render.save_episode(env, [start, *(tree.index(states, i) for i in range(length))], Path(new))
        written = [path.replace(folder / path.name) for path in pictures]
    if not written:
        with contextlib.suppress(OSError):  # it existed before and is not empty
            folder.rmdir()
    return written
