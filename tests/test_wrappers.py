import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import probe
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.wrappers import Frames, Rewards, innermost, seen_alike
from evorl.errors import OptionError
from evorl.spaces import Box, MultiDiscrete
from evorl.types import Env
from tests.counting import Counting


def rewards(env, steps):
    """Of an episode of Counting, which lasts as many steps as its level, each with reward 1."""
    state, _ = env.reset(jax.random.key(0), env.default_params)
    found = []
    for i in range(steps):
        state, timestep = env.step(jax.random.key(i), state, jnp.zeros(1), env.default_params)
        found.append(float(timestep.reward))
        if timestep.terminated | timestep.truncated:
            break
    return found


def test_rewards_come_in_sums_and_at_the_end():
    plain = rewards(Counting(), 9)
    delayed = rewards(Rewards(Counting(), scale=0.5, delay=2), 9)
    assert isinstance(Rewards(Counting()), Env)
    assert rewards(Rewards(Counting()), 9) == plain
    sums = [0.5 * sum(plain[max(0, i - 1) : i + 1]) if i % 2 else 0.0 for i in range(len(plain))]
    if len(plain) % 2:
        sums[-1] = 0.5 * plain[-1]
    np.testing.assert_allclose(delayed, sums)


def test_refuses_no_delay():
    with pytest.raises(OptionError, match="delay=0"):
        Rewards(Counting(), delay=0)


MAZE = Maze(RandomWalls(5, 5, 3, 9), max_episode_steps=12)


def observations(env, steps):
    """What is seen from a reset on, under random actions that are those of every env with these actions."""
    state, obs = env.reset(jax.random.key(0), env.default_params)
    seen = [obs]
    for i in range(steps):
        key = jax.random.key(i)
        state, timestep = env.step(key, state, env.action_space.sample(key), env.default_params)
        seen.append(timestep.obs)
    return seen


def test_frames_are_those_of_gymnasium():
    gymnasium = pytest.importorskip("gymnasium")
    plain = [np.asarray(obs["image"]) for obs in observations(MAZE, 9)]

    class Replayed(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, plain[0].shape)
        action_space = gymnasium.spaces.Discrete(1)

        def reset(self, *, seed=None, options=None):
            self.left = iter(plain)
            return next(self.left), {}

        def step(self, action):
            return next(self.left), 0.0, False, False, {}

    stacked = gymnasium.wrappers.FrameStackObservation(Replayed(), 3)
    expected = [stacked.reset()[0], *(stacked.step(0)[0] for _ in range(9))]
    found = [obs["image"] for obs in observations(Frames(MAZE, 3), 9)]
    np.testing.assert_array_equal(found, expected)


def test_frames_of_choices():
    assert Frames(MAZE, 3).observation_space.parts["direction"] == MultiDiscrete((4, 4, 4))
    assert Frames(Frames(MAZE, 3), 2).observation_space.parts["direction"] == MultiDiscrete((4,) * 6)
    plain = [int(obs["direction"]) for obs in observations(MAZE, 5)]
    found = [obs["direction"].tolist() for obs in observations(Frames(MAZE, 3), 5)]
    assert found == [(plain[:1] * 2 + plain)[i : i + 3] for i in range(6)]


def test_frames_keep_the_bounds_of_each_part():
    env = probe.SeenReward()
    low, high = env.observation_space.bounds
    space = Frames(env, 2).observation_space
    assert isinstance(space, Box)
    np.testing.assert_array_equal(space.bounds, [np.stack([low, low]), np.stack([high, high])])


def test_seen_alike_leaves_out_rewards_alone():
    other = Maze(RandomWalls(3, 3, 0, 0))
    wrapped = Rewards(Frames(MAZE, 2), delay=3)
    assert innermost(wrapped) == MAZE
    assert seen_alike(wrapped, other) == Frames(other, 2)
    assert seen_alike(MAZE, other) == other


def test_refuses_no_frames():
    with pytest.raises(OptionError, match="count=0"):
        Frames(Counting(), 0)
