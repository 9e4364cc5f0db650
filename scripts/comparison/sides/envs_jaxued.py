"""Random actions in the maze of jaxued."""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp

jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]  jaxued 0.0.1 was written for an older jax

from envs_sizes import STEPS  # noqa: E402
from jax_rounds import call  # noqa: E402
from jaxued.environments.maze import Maze, make_level_generator  # noqa: E402
from jaxued.wrappers import AutoResetWrapper  # noqa: E402
from side import Round, serve  # noqa: E402


def maze(size: int) -> Round:
    """Mazes in one vmap; each episode has a new level."""
    make_level = make_level_generator(13, 13, 60)
    env = AutoResetWrapper(Maze(13, 13, agent_view_size=5, normalize_obs=True), make_level)
    params, steps = env.default_params, STEPS[size]

    def play(key: Any) -> Any:
        keys = jax.random.split(key, size)
        levels = jax.vmap(make_level)(keys)
        _, states = jax.vmap(env.reset_to_level, (0, 0, None))(keys, levels, params)
        actions = jax.random.randint(jax.random.fold_in(key, 1), (steps, size), 0, env.action_space(params).n)

        def step(carry: Any, given: Any) -> tuple[Any, None]:
            states, total = carry
            action, key = given
            keys = jax.random.split(key, size)
            obs, states, reward, done, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, states, action, params)
            return (states, total + obs.image.sum() + obs.agent_dir.sum() + reward.sum() + done.sum()), None

        return jax.lax.scan(step, (states, jnp.float32(0)), (actions, jax.random.split(key, steps)))[0][1]

    return call(play, size * steps, legacy_key=True)


if __name__ == "__main__":
    serve({"maze": maze}, "jaxued", "jax")
