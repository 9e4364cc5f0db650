"""Tiny workflows that tests share: a walk of three steps, and builders of agents, searches and populations on it."""

from dataclasses import replace

from evorl.agents import TD3, MLPPolicy
from evorl.envs.sanity.probe import Probe
from evorl.workflows import Evolution, OffPolicy, OnPolicy


class Walk(Probe):
    """Three steps along a line whose reward depends on everything, so that every hyperparameter can matter."""

    max_episode_steps = 3

    def advance_obs(self, obs):
        return obs + 0.3

    def reward(self, obs, action):
        return obs - (action - 0.4 * obs) ** 2


ENV = Walk()
AGENT = TD3(hidden=(8, 8))
SMALL = {"batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 6, "scan_length": 3}
OFF_POLICY = OffPolicy(ENV, AGENT, num_envs=4, num_steps=2, num_updates=4, **SMALL)


def off_policy(agent, env=ENV, **options):
    return OffPolicy(
        env,
        agent(hidden=(8, 8), **options.pop("of_agent", {})),
        num_envs=4,
        num_steps=2,
        num_updates=4,
        **SMALL,
        **options,
    )


def on_policy(agent, env=ENV, **options):
    return OnPolicy(env, replace(agent, hidden=(8, 8)), num_envs=4, num_steps=4, eval_episodes=6, **options)


CHOICES = Walk(num_actions=3)
UPDATES = {"min_updates": 2, "max_updates": 3}


def evolution(evolver, normalization):
    policy = MLPPolicy(hidden=(8,))
    return Evolution(ENV, policy, evolver, 2, normalization=normalization, vbn_steps=12, eval_episodes=6, scan_length=3)
