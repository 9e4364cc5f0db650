"""Agents and environments with one mistake each, which the sanity suite must catch."""

from dataclasses import replace

import jax.numpy as jnp

from evorl.agents import PPO, TD3
from evorl.envs.sanity import DigitMemory


class WrongSign(PPO):
    """Learns to do what turned out worse."""

    def loss_of_rows(self, batch, *rest):
        return super().loss_of_rows(replace(batch, advantage=-batch.advantage), *rest)


class NoBootstrap(PPO):
    """Nothing counts but the reward of the step itself."""

    def estimate_advantages(self, transitions, *rest):
        over = jnp.ones_like(transitions.terminated)
        return super().estimate_advantages(replace(transitions, terminated=over), *rest)


class NoMask(PPO):
    """What comes after an episode's end counts as part of it."""

    def estimate_advantages(self, transitions, *rest):
        never = jnp.zeros_like(transitions.terminated)
        return super().estimate_advantages(replace(transitions, terminated=never, truncated=never), *rest)


class NeverExplores(PPO):
    """Draws no action."""

    act = PPO.mode


class SecondPartDropped(PPO):
    """Learns as if the second part of every action had been 0."""

    def build_batch(self, params, transitions, acted_by_current_params):
        sample = transitions.extras["sample"].at[..., 1].set(0)
        changed = replace(transitions, extras=transitions.extras | {"sample": sample})
        return super().build_batch(params, changed, acted_by_current_params)


class OneStepLate(PPO):
    """Takes for what it saw before an action what it saw after it."""

    def build_batch(self, params, transitions, acted_by_current_params):
        return super().build_batch(params, replace(transitions, obs=transitions.next_obs), acted_by_current_params)


class PartUnseen(PPO):
    """Does not see one part of the observation."""

    def apply(self, params, obs, *rest):
        return super().apply(params, obs | {"flat": jnp.zeros_like(obs["flat"])}, *rest)


class ActorDescends(TD3):
    """The actor looks for the actions of the lowest value."""

    def actor_loss(self, *given):
        loss, metrics = super().actor_loss(*given)
        return -loss, metrics


class Leaky(DigitMemory):
    """Shows the digit to recite when it is to be recited."""

    def observe(self, env_state):
        recited = jnp.maximum(env_state.steps - self.length - self.delay, 0)
        return env_state.digits[jnp.minimum(recited, self.length - 1)]
