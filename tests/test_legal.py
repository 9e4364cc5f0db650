"""Legal choices reach every discrete head, and no network sees them."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from evorl.agents import DQN, PPO, DiscreteSAC, MLPPolicy
from evorl.agents.random import Random
from evorl.ec import OpenES
from evorl.envs import check_env
from evorl.envs.wrappers import FilterObservation, FrameStack
from evorl.spaces import Box, Dict, Discrete, MultiDiscrete, ObsWithActionMask
from evorl.spaces.action_mask import MASKED_LOGIT
from evorl.types import TimeStep
from evorl.workflows import Evolution, OffPolicy, OnPolicy

ACTION = Discrete(4, 3)
SPACE = ObsWithActionMask(Box(0.0, 1.0, (2,)), (4,))


@struct.dataclass
class DoorsState:
    open: Any  # [4] bool
    steps: Any


@dataclass(frozen=True)
class Doors:
    """Two of four doors are open; a closed one ends the episode at -10, of the open ones the left one gives 1.

    Nothing but the mask says which are open.
    """

    default_params = None
    fresh_reset = True
    max_episode_steps = 5
    observation_space = SPACE
    action_space = ACTION

    def reset(self, key, params):
        del params
        state = DoorsState(jax.random.permutation(key, jnp.arange(4) < 2), jnp.int32(0))
        return state, self.see(state)

    def step(self, key, env_state, action, params):
        del params
        closed = ~env_state.open[action - 3]
        reward = jnp.where(closed, -10.0, (env_state.open.argmax() == action - 3).astype(jnp.float32))
        after = DoorsState(jax.random.permutation(key, jnp.arange(4) < 2), env_state.steps + 1)
        return after, TimeStep(self.see(after), reward, closed, ~closed & (after.steps >= 5))

    def see(self, state):
        return {"obs": jnp.zeros(2), "legal": state.open}


def agents(space=SPACE):
    small = {"hidden": (8,)}
    yield PPO(**small, observation_space=space, action_space=ACTION)
    yield DQN(**small, epsilon=1.0, observation_space=space, action_space=ACTION)
    yield DQN(dueling=True, double=False, epsilon=1.0, **small, observation_space=space, action_space=ACTION)
    yield DiscreteSAC(**small, observation_space=space, action_space=ACTION)
    yield MLPPolicy(**small, observation_space=space, action_space=ACTION)
    yield Random(observation_space=space, action_space=ACTION)


def params(agent):
    return jax.jit(agent.init)(jax.random.key(1)).actor.params


@pytest.mark.parametrize("agent", list(agents()), ids=lambda agent: type(agent).__name__)
def test_every_action_is_legal(agent):
    legal = jnp.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
    obs = {"obs": jnp.ones((3, 2)) * 0.3, "legal": legal}
    for how in (agent.act, agent.mode):
        act = jax.vmap(how, (None, 0, None, 0))
        draw = jax.vmap(act, (None, None, None, 0))
        keys = jax.random.split(jax.random.key(0), (200, 3))
        actions = np.asarray(draw(params(agent), obs, agent.initial_memory(), keys)[0])
        assert set(actions[:, 0]) <= {4, 6}
        assert set(actions[:, 1]) == {3}
        assert set(actions[:, 2]) <= {3, 4, 5, 6}  # where none is legal all are


def test_networks_do_not_see_what_is_legal():
    agent, plain = (
        PPO(hidden=(8,), observation_space=SPACE, action_space=ACTION),
        PPO(hidden=(8,), observation_space=SPACE.space, action_space=ACTION),
    )
    assert jax.tree.map(jnp.shape, params(agent)) == jax.tree.map(jnp.shape, params(plain))
    obs, legal = jnp.ones((5, 2)) * 0.3, jnp.ones((5, 4), bool)
    masked, value = agent.apply(params(agent), {"obs": obs, "legal": legal})
    free, other = plain.apply(params(agent), obs)
    np.testing.assert_array_equal(masked.logits, free.logits)
    np.testing.assert_array_equal(value, other)


def test_log_probabilities_and_entropy_are_those_among_legal_choices():
    agent = PPO(hidden=(8,), observation_space=SPACE, action_space=ACTION)
    obs = {"obs": jnp.ones((1, 2)) * 0.3, "legal": jnp.array([[1, 0, 1, 0]], bool)}
    policy, _ = agent.apply(params(agent), obs)
    logits = np.asarray(policy.logits)[0, [0, 2]]
    probs = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(policy.log_prob(jnp.array([2])), np.log(probs[1]), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), -(probs * np.log(probs)).sum(), rtol=1e-5)


def test_several_numbers_have_masks_side_by_side():
    action = MultiDiscrete((2, 3))
    agent = PPO(hidden=(8,), observation_space=ObsWithActionMask(Box(0.0, 1.0, (2,)), (2, 3)), action_space=action)
    obs = {"obs": jnp.zeros((1, 2)), "legal": jnp.array([[0, 1, 1, 0, 1]], bool)}
    policy, _ = agent.apply(params(agent), obs)
    drawn = np.asarray(jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 200)))[:, 0]
    assert set(drawn[:, 0]) == {1}
    assert set(drawn[:, 1]) == {0, 2}
    np.testing.assert_allclose(policy.entropy(), np.log(2), atol=1e-2)


def test_the_target_of_q_learning_is_of_legal_choices():
    agent = DQN(hidden=(8,), epsilon=1.0, observation_space=SPACE, action_space=ACTION)
    obs = {"obs": jnp.ones((1, 2)) * 0.3, "legal": jnp.array([[0, 1, 0, 0]], bool)}
    _, values = agent.network.apply(params(agent), None, obs, method="step")
    assert np.asarray(values)[0, [0, 2, 3]].tolist() == [MASKED_LOGIT] * 3
    assert abs(float(values[0, 1])) < 10


@pytest.mark.program
def test_the_check_plays_legal_actions(capsys):
    check_env(Doors(), episodes=4)
    assert "-10" not in capsys.readouterr().err


@pytest.mark.program
@pytest.mark.parametrize("kind", ["ppo", "dqn", "sac", "es"])
def test_what_only_the_mask_shows_is_kept_to(kind):
    """A closed door costs 10, and a random policy without masks opens one at every other step."""
    env = Doors()
    small = {"hidden": (8,)}
    match kind:
        case "ppo":
            agent = PPO(**small)
            workflow = OnPolicy(env, agent, num_envs=4, num_steps=8, num_epochs=1, batch_size=32, eval_episodes=8)
        case "es":
            agent = MLPPolicy(**small)
            workflow = Evolution(env, agent, OpenES(4), vbn_steps=20, eval_episodes=8)
        case _:
            agent = (DQN if kind == "dqn" else DiscreteSAC)(**small)
            sizes = {"num_envs": 2, "num_steps": 4, "num_updates": 2, "batch_size": 8, "capacity": 64}
            workflow = OffPolicy(env, agent, **sizes, random_steps=8, eval_episodes=8)
    state = workflow.init(jax.random.key(0))
    step = jax.jit(workflow.step)
    for i in range(4):
        state, metrics = step(state, jax.random.key(i))
        assert not metrics["episodes"] or metrics["return"] >= 0
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))
    assert jax.jit(workflow.evaluate)(state, jax.random.key(9))["return"] >= 0


@pytest.mark.program
def test_wrappers_keep_what_is_legal():
    env = FrameStack(Doors(), 3)
    assert env.observation_space == ObsWithActionMask(Box(0.0, 1.0, (3, 2)), (4,))
    state, obs = env.reset(jax.random.key(0), None)
    assert obs["obs"].shape == (3, 2)
    assert obs["legal"].tolist() == state.inner.open.tolist()
    _, timestep = env.step(jax.random.key(1), state, 3 + obs["legal"].argmax(), None)
    assert timestep.obs["legal"].shape == (4,)
    check_env(FilterObservation(Doors(), [1]), episodes=2)


def test_legal_within_other_spaces_has_its_parts():
    assert Dict({"a": SPACE}).sample(jax.random.key(0))["a"]["legal"].dtype == bool
