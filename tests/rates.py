"""An environment whose levels say how often their episodes are solved, whatever the student does."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from evorl.spaces import Box, Discrete
from evorl.types import TimeStep

RATES = (0.1, 0.3, 0.5, 0.7, 0.9)


class RateState(NamedTuple):
    rate: Any
    solves: Any
    steps: Any


@dataclass(frozen=True)
class Rates:
    """A level is a solve rate: a solved episode gives 1 and ends at step 1, another one gives 0 and ends by time.

    The observation is the rate, which differs by less than 0.001 from one of RATES, so that levels are different ones.
    Where `rate` is given, all levels have it, those that a teacher makes too.
    """

    rate: float = 0.0
    max_episode_steps: int = 6

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    default_params = None
    fresh_reset = True
    genome_size = 1

    def sample_level(self, key, params):
        key_rate, key_more = jax.random.split(key)
        rate = jnp.float32(self.rate) if self.rate else jax.random.choice(key_rate, jnp.array(RATES))
        return rate + 0.001 * jax.random.uniform(key_more)

    def get_level(self, env_state):
        return env_state.rate

    def is_same_level(self, a, b):
        return a == b

    def mutate_level(self, key, level, num_edits):
        return self.sample_level(key, None)

    def crossover_levels(self, key, a, b):
        return jnp.where(jax.random.bernoulli(key), a, b)

    def level_from_genome(self, genome):
        return jnp.clip(0.5 + genome[0], 0.1, 0.9)

    def reset_to_level(self, key, level):
        state = RateState(level, jax.random.bernoulli(key, level), jnp.int32(0))
        return state, level[None]

    def reset(self, key, params):
        return self.reset_to_level(key, self.sample_level(key, params))

    def step(self, key, env_state, action, params):
        after = env_state._replace(steps=env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        observation = after.rate[None]
        return after, TimeStep(observation, jnp.float32(after.solves), after.solves, ~after.solves & over)

    def is_solved(self, episode_return):
        return episode_return > 0

    def optimal_return(self, level):
        return jnp.float32(1)

    def make_editor(self):
        return RatesEditor(self)


@dataclass(frozen=True)
class RatesEditor:
    """Makes a level in one step, the same whatever the action is."""

    env: Rates

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    default_params = None
    fresh_reset = True
    max_episode_steps = 1

    def reset(self, key, params):
        return RateState(self.env.sample_level(key, None), jnp.bool_(False), jnp.int32(0)), jnp.zeros(1)

    def step(self, key, env_state, action, params):
        return env_state, TimeStep(jnp.zeros(1), jnp.float32(0), jnp.bool_(True), jnp.bool_(False))

    def get_level(self, env_state):
        return env_state.rate
