"""Teams: each agent of a team learns as it would alone, and steps without a choice teach nothing."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import A2C, DQN, IMPALA, PPO, SAC, TD3, DiscreteSAC, MLPPolicy, PolicyGradient
from evorl.agents.losses import clipped_loss, mean_of_rows
from evorl.agents.ppo import PPOHyperparams
from evorl.agents.random import Random
from evorl.agents.team import Team, member_spaces
from evorl.ec import OpenES
from evorl.envs import check
from evorl.envs.games import Joint, Ranked
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU
from evorl.replay import SequenceReplay
from evorl.returns import gae, is_known, through
from evorl.spaces import Box, Dict, Discrete, Legal, Members, MultiDiscrete, has_choice, random_action
from evorl.types import Batch
from evorl.workflows import Evolution, OffPolicy, OnPolicy
from evorl.workflows.passes import standardized
from tests.gaming import Alone, Chase
from tests.test_contract import CHOICES, ENV

CHASE, REAL = Chase(), Chase(real=True)
SMALL = {"num_updates": 4, "batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 4, "chunk": 3}


def template(agent, env, *args, **options):
    return agent(*member_spaces(env.observation_space, env.action_space), *args, **{"hidden": (4,)} | options)


def team(env, agent, **options):
    return Team(env.observation_space, env.action_space, agent, **options)


def on_policy(env, agent, **options):
    return OnPolicy(env, agent, num_envs=4, num_steps=8, num_epochs=2, batch_size=16, eval_episodes=4, **options)


def off_policy(env, agent, **options):
    return OffPolicy(env, agent, num_envs=4, num_steps=4, **SMALL | options)


def after(workflow, steps=3):
    state = workflow.init(jax.random.key(0), workflow.hyperparams())
    step = jax.jit(workflow.step)
    for i in range(steps):
        state, metrics = step(state, jax.random.key(i))
    return state, metrics


@pytest.mark.parametrize(
    ("make", "env", "agent", "options"),
    [
        pytest.param(on_policy, CHOICES, PolicyGradient, {"objective": PPO()}, id="ppo"),
        pytest.param(on_policy, ENV, PolicyGradient, {"objective": IMPALA(), "core": GRU(3)}, id="impala_gru"),
        pytest.param(off_policy, CHOICES, DQN, {}, id="dqn"),
        pytest.param(off_policy, ENV, TD3, {}, id="td3"),
        pytest.param(off_policy, ENV, SAC, {}, id="sac", marks=pytest.mark.slow),
        pytest.param(on_policy, CHOICES, PolicyGradient, {"objective": A2C()}, id="a2c", marks=pytest.mark.slow),
        pytest.param(off_policy, CHOICES, DiscreteSAC, {}, id="discrete_sac", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_team_of_one_is_its_agent(make, env, agent, options, shared):
    alone, game = template(agent, env, **options), Alone(env)
    plain, metrics = after(make(env, alone))
    as_team, metrics_of_team = after(make(game, team(game, alone, shared=shared)))
    assert metrics_of_team.keys() - metrics.keys() == {"return/only"}
    for name, x in metrics.items():
        np.testing.assert_allclose(metrics_of_team[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
    own = as_team.agent.actor.params["only"]
    own = own if shared else tree.index(own, 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), own, plain.agent.actor.params)
