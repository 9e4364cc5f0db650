"""Every agent on the five probe environments: the first that fails says which part of it is wrong.

The probes are one environment, of which env_params choose one, so that three seeds on each of the five are one program.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agents import (
    A2C,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    DiscreteSAC,
    PolicyGradient,
)
from evorl.envs.sanity import probe
from evorl.workflows import OffPolicy, OnPolicy
from tests.tiers import program_fixture

PROBES = ("ConstantReward", "ObsDependentReward", "DelayedReward", "ActionDependentReward", "ObsActionReward")
SEEDS = 3


@dataclass(frozen=True)
class AnyProbe:
    """The probe with the number that the params give."""

    choices: int = 0

    default_params = np.int32(0)
    fresh_reset = True
    max_episode_steps = 2
    observation_space = probe.Probe.observation_space

    @property
    def probes(self):
        return [getattr(probe, name)(num_actions=self.choices) for name in PROBES]

    @property
    def action_space(self):
        return self.probes[0].action_space

    def reset(self, key, params):
        return jax.lax.switch(params, [lambda key, p=p: p.reset(key, None) for p in self.probes], key)

    def step(self, key, env_state, action, params):
        branches = [lambda *at, p=p: p.step(*at, None) for p in self.probes]
        return jax.lax.switch(params, branches, key, env_state, action)


def off_policy(agent, choices, **options):
    env = AnyProbe(choices)
    agent = replace(agent, hidden=(32, 32))
    sizes = {"num_envs": 8, "num_steps": 8, "num_updates": 64, "batch_size": 64, "capacity": 4096}
    return OffPolicy(env, agent, **sizes, random_steps=512, eval_episodes=16, **options)


def on_policy(objective, choices, **options):
    env = AnyProbe(choices)
    agent = replace(objective, hidden=(32, 32))
    sizes = {"num_envs": 32, "num_steps": 4, "eval_episodes": 16}
    return OnPolicy(env, agent, **sizes, **options)


FAST = {"actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.05}
ONE_STEP = {"num_epochs": 1, "batch_size": 128, "normalize_advantages": False}
SURE = {**FAST, "temperature": 0.02, "temperature_lr": 0.0}
LEARNERS = {
    "td3": (off_policy(TD3(**FAST), 0), 30),
    "sac": (off_policy(SAC(**SURE), 0, policy_delay=1), 30),
    "ppo": (on_policy(PPO(learning_rate=3e-3), 0, batch_size=32), 100),
    "a2c": (on_policy(A2C(learning_rate=5e-3), 0, **ONE_STEP), 600),
    "impala": (on_policy(IMPALA(learning_rate=5e-3), 0, staleness=2, **ONE_STEP), 600),
    "dqn": (off_policy(DQN(learning_rate=3e-3, tau=0.05), 5, policy_delay=1), 30),
    "dqn_n_step": (off_policy(DQN(learning_rate=3e-3, tau=0.05), 5, policy_delay=1, n_step=2), 30),
    "discrete_sac": (off_policy(DiscreteSAC(**SURE), 5, policy_delay=1), 30),
    "discrete_ppo": (on_policy(PPO(learning_rate=3e-3), 5, batch_size=32), 100),
    "discrete_a2c": (on_policy(A2C(learning_rate=5e-3), 5, **ONE_STEP), 600),
}


@program_fixture(scope="module", params=LEARNERS)
def learned(request):
    """A workflow and its states [probes, seeds, ...]."""
    workflow, iterations = LEARNERS[request.param]

    def run(params, key):
        state = workflow.init(key, None, params)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, iterations))[0]

    keys = jax.random.split(jax.random.key(0), SEEDS)
    each = jax.vmap(jax.vmap(run, (None, 0)), (0, None))
    return workflow, jax.jit(each)(jnp.arange(len(PROBES), dtype=jnp.int32), keys)


def value(workflow, state, obs):
    """The value that a state's agent gives to an observation, acting as it does."""
    agent, params = workflow.agent, state.agent.actor.params
    action = workflow.policy(state)(obs, None, jax.random.key(0))[0]
    match agent:
        case PolicyGradient():
            return workflow.value_scale(state) * agent.apply(params, workflow.normalize_obs(state, obs))[1]
        case DQN():
            return agent.network.apply(params, obs)[action]
        case DiscreteSAC():
            return agent.critic.apply(state.agent.critic.params, obs)[..., action].mean()
    return agent.critic.apply(state.agent.critic.params, obs, action).mean()


def action(workflow, state, obs):
    """The greedy action as a number from -1 to 1."""
    found = workflow.policy(state)(obs, None, jax.random.key(0))[0]
    return found[0] if found.ndim else 2 * found / (workflow.env.choices - 1) - 1


def of_seeds(function, learned, name, obs):
    workflow, states = learned
    of_probe = jax.tree.map(lambda x: x[PROBES.index(name)], states)
    return jax.vmap(lambda state: function(workflow, state, jnp.float32([obs])))(of_probe)


def test_constant_reward(learned):
    np.testing.assert_allclose(of_seeds(value, learned, "ConstantReward", 0.0), 1.0, atol=0.05)


def test_seen_reward(learned):
    for obs in (1.0, -1.0):
        np.testing.assert_allclose(of_seeds(value, learned, "ObsDependentReward", obs), obs, atol=0.1)


def test_late_reward(learned):
    np.testing.assert_allclose(of_seeds(value, learned, "DelayedReward", 1.0), 1.0, atol=0.1)
    np.testing.assert_allclose(of_seeds(value, learned, "DelayedReward", 0.0), 0.99, atol=0.1)


def test_chosen_reward(learned):
    np.testing.assert_allclose(of_seeds(action, learned, "ActionDependentReward", 0.0), 0.5, atol=0.2)


def test_seen_choice(learned):
    for obs in (1.0, -1.0):
        np.testing.assert_allclose(of_seeds(action, learned, "ObsActionReward", obs), obs / 2, atol=0.2)
