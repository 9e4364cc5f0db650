"""Random actions in environments of evorl, and curricula of mazes."""

from functools import partial

import jax
import jax.numpy as jnp
import maze_speed
import mpe
from curricula import half_full, student
from envs_sizes import CURRICULA, ITERATIONS, PARTICLE_STEPS, PARTICLES, STEPS, count_calls
from jax_rounds import call, call_steps
from side import Round, serve

from evorl.ued import PLR


def maze(size: int) -> Round:
    """Mazes in blocks of 32, one after the other; each episode has a new level."""
    blocks = max(size // 32, 1)

    def play(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, blocks)
        return jax.lax.map(lambda key: maze_speed.play(maze_speed.FRESH, key, size // blocks, STEPS[size])[0], keys)

    return call(play, size * STEPS[size])


def particles(name: str, size: int) -> Round:
    return call(mpe.ours(name, size), size * PARTICLE_STEPS, times=count_calls(size))


def curriculum(name: str, size: int) -> Round:
    """Iterations of PPO on new levels, or of PLR that plays only new levels or only replays."""
    del size
    workflow = student("lstm") if name == "domain_randomization" else PLR(student("lstm"))
    state = jax.jit(workflow.init)(jax.random.key(0))
    if isinstance(workflow, PLR):
        state = half_full(workflow, state)
        state = state.replace(numbers=state.numbers | {"replay": jnp.float32(name == "plr_replays")})
    step = jax.jit(lambda state, key: workflow.step(state, key)[0])
    return call_steps(step, state, ITERATIONS, ITERATIONS)


if __name__ == "__main__":
    jobs = {name: partial(particles, name) for name in PARTICLES}
    jobs |= {name: partial(curriculum, name) for name in CURRICULA}
    serve({"maze": maze, **jobs}, "jax")
