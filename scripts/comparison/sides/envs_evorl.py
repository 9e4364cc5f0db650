"""Random actions in environments of evorl."""

import jax
import maze_speed
import mpe
from envs_sizes import PARTICLE_STEPS, STEPS
from jax_rounds import call
from side import Round, serve


def maze(size: int) -> Round:
    """Mazes in blocks of 32, one after the other; each episode has a new level."""
    blocks = max(size // 32, 1)

    def play(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, blocks)
        return jax.lax.map(lambda key: maze_speed.play(maze_speed.FRESH, key, size // blocks, STEPS[size])[0], keys)

    return call(play, size * STEPS[size])


def spread(size: int) -> Round:
    return call(mpe.ours("spread", size), size * PARTICLE_STEPS)


if __name__ == "__main__":
    serve({"maze": maze, "spread": spread}, "jax")
