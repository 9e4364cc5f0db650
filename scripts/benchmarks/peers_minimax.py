"""Play random actions in minimax's maze, for `maze_speed.py`; it runs in a separate environment with minimax-lib 0.2.0.

Prints one line of JSON: the steps per second on fresh levels by number of environments, the best of the repeats.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp

jax.tree_map = jax.tree.map  # pyright: ignore  # its name in the JAX version of minimax

from minimax.envs.maze.maze import Maze  # noqa: E402  # pyright: ignore[reportMissingImports]  # no dependency of evorl


def random_play(num_envs: int, num_steps: int):
    """Return a jitted function from a key to the sum of all observations, rewards and ends."""
    env = Maze(n_walls=60, replace_wall_pos=True, normalize_obs=True)

    def play(key):
        keys = jax.random.split(key, num_envs)
        actions = jax.random.randint(jax.random.fold_in(key, 1), (num_steps, num_envs), 0, 7)
        _, state = jax.vmap(env.reset)(keys)

        def step(carry, action):
            state, keys, total = carry
            keys, now = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
            obs, state, reward, done, _ = jax.vmap(env.step)(now, state, action)
            seen = obs["image"].sum() + obs["agent_dir"].sum() + reward.sum() + done.sum()
            return (state, keys, total + seen), None

        return jax.lax.scan(step, (state, keys, jnp.float32(0)), actions)[0][2]

    return jax.jit(play)


def main() -> None:
    repeats, work = int(sys.argv[1]), json.loads(sys.argv[2])
    speeds = {}
    for num_envs, num_steps in work.items():
        play, times = random_play(int(num_envs), num_steps), []
        for i in range(repeats + 1):  # the first one compiles
            started = time.perf_counter()
            jax.block_until_ready(play(jax.random.PRNGKey(i)))
            times.append(time.perf_counter() - started)
        speeds[num_envs] = int(num_envs) * num_steps / min(times[1:])
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
