"""A core and an environment by which tests remember."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.spaces import Box
from evorl.types import TimeStep


class FlaxGRU(nn.Module):
    """flax's cell under the protocol of a core."""

    width: int = 8

    def setup(self):
        self.cell = nn.GRUCell(self.width)

    @nn.nowrap
    def initial_memory(self):
        return jnp.zeros(self.width)

    def step(self, memory, x):
        return self.cell(memory, x)

    def sequence(self, memory, x, ended):
        def one(cell, memory, step):
            x, ended = step
            memory, y = cell(memory, x)
            return jnp.where(ended[..., None], 0, memory), (memory, y)

        return nn.scan(one, variable_broadcast="params", split_rngs={"params": False})(self.cell, memory, (x, ended))[1]


@dataclass(frozen=True)
class Recall:
    """A sign is shown at the first of `length` steps, 0 afterwards; the last action is paid by its product with it."""

    length: int = 3

    default_params = None
    fresh_reset = True
    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    @property
    def max_episode_steps(self):
        return self.length

    def reset(self, key, params):
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return (sign, jnp.int32(0)), sign[None]

    def step(self, key, env_state, action, params):
        sign, steps = env_state
        over = steps + 1 >= self.length
        reward = jnp.where(over, sign * action[0], 0.0)
        return (sign, steps + 1), TimeStep(jnp.zeros(1), reward, over, jnp.bool_(False))
