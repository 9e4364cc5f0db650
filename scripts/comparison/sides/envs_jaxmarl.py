"""Random actions in particle environments of JaxMARL."""

# pyright: reportMissingImports=false
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxmarl
from envs_sizes import PARTICLE_STEPS, PARTICLES, count_calls
from jax_rounds import call
from side import Round, serve


def particles(name: str, size: int) -> Round:
    env = jaxmarl.make(f"MPE_simple_{name}_v3")

    def play(key: Any) -> Any:
        _, states = jax.vmap(env.reset)(jax.random.split(key, size))
        shape = PARTICLE_STEPS, size
        drawn = {
            agent: jax.random.randint(jax.random.fold_in(key, i), shape, 0, env.action_space(agent).n)
            for i, agent in enumerate(env.agents)
        }

        def step(carry: Any, given: Any) -> tuple[Any, None]:
            (states, total), (action, key) = carry, given
            obs, states, reward, done, _ = jax.vmap(env.step)(jax.random.split(key, size), states, action)
            seen = jax.tree.leaves((obs, reward, done["__all__"]))
            return (states, total + sum(leaf.sum(dtype=jnp.float32) for leaf in seen)), None

        return jax.lax.scan(step, (states, jnp.float32(0)), (drawn, jax.random.split(key, PARTICLE_STEPS)))[0][1]

    return call(play, size * PARTICLE_STEPS, legacy_key=True, times=count_calls(size))


if __name__ == "__main__":
    serve({name: partial(particles, name) for name in PARTICLES}, "jaxmarl", "jax")
