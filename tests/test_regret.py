"""What an episode of the maze can give at most, against 100,000 episodes that are played."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.maze import Maze, RandomWalls
from evorl.types import TimeStep
from evorl.ued import Outcome, TrueRegret

pytestmark = pytest.mark.program

STEPS = 20
ENV = Maze(RandomWalls(4, 4, fewest=2, most=8, solvable=False), max_episode_steps=STEPS, num_actions=3)
LEFT, RIGHT, FORWARD = 0, 1, 2
HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def to_go(level):
    """Actions to the goal from every cell and direction, [height, width, 4], relaxed in NumPy; inf without a way."""
    walls, (goal_x, goal_y) = np.asarray(level.grid), np.asarray(level.goal)
    height, width = walls.shape
    left = np.full((height, width, 4), np.inf)
    left[goal_y, goal_x] = 0
    for _ in range(4 * height * width):
        turned = np.minimum(np.roll(left, 1, -1), np.roll(left, -1, -1))
        ahead = np.full_like(left, np.inf)
        for direction, (dx, dy) in enumerate(HEADINGS):
            for y in range(max(0, -dy), height - max(0, dy)):
                for x in range(max(0, -dx), width - max(0, dx)):
                    if not walls[y + dy, x + dx]:
                        ahead[y, x, direction] = left[y + dy, x + dx, direction]
        after = np.minimum(left, 1 + np.minimum(turned, ahead))
        if (after == left).all():
            return left
        left = after
    return left


@partial(jax.jit, static_argnames="episodes")
def played(levels, left, noise, key, episodes=1):
    """Rewards and ends, [steps, levels * episodes], of who goes the shortest way but for a share `noise` of actions."""
    levels, left = (jax.tree.map(lambda x: jnp.repeat(x, episodes, axis=0), tree) for tree in (levels, left))
    n = len(left)
    state, _ = jax.vmap(ENV.reset_to_level, (None, 0))(key, levels)

    def step(carry, key):
        state, over = carry
        key_noise, key_action = jax.random.split(key)

        def best(state, left):
            act = lambda action: ENV.step(key, state, action, ENV.default_params)[0]  # noqa: E731
            after = jax.vmap(act)(jnp.arange(3))
            return left[after.position[:, 1], after.position[:, 0], after.direction].argmin()

        drawn = jax.random.randint(key_action, (n,), 0, 3)
        action = jnp.where(jax.random.uniform(key_noise, (n,)) < noise, drawn, jax.vmap(best)(state, left))
        after, timestep = jax.vmap(ENV.step, (None, 0, 0, None))(key, state, action, ENV.default_params)
        assert isinstance(timestep, TimeStep)
        ended = (timestep.terminated | timestep.truncated) & ~over
        return (after, over | ended), (jnp.where(over, 0, timestep.reward), ended)

    return jax.lax.scan(step, (state, jnp.zeros(n, bool)), jax.random.split(key, STEPS))[1]


def some(n):
    keys = jax.random.split(jax.random.key(1), n)
    levels = jax.jit(jax.vmap(ENV.sample_level, (0, None)))(keys, ENV.default_params)
    left = np.stack([to_go(jax.tree.map(lambda x, i=i: x[i], levels)) for i in range(n)])
    return levels, jnp.float32(left), jax.jit(jax.vmap(ENV.optimal_return))(levels)


def regret(outcome, optimum):
    reward, ended = outcome
    assert ended.sum(0).tolist() == [1] * ended.shape[1]
    return TrueRegret()(Outcome(reward, ended, optimum=optimum, repeats=reward.shape[1] // len(optimum)))


def checked(num_levels, episodes):
    levels, left, optimum = some(num_levels)
    position, direction = np.asarray(levels.agent), np.asarray(levels.direction)
    away = np.asarray(left)[np.arange(num_levels), position[:, 1], position[:, 0], direction]
    unsolvable = np.isinf(away) | (away > STEPS)
    assert 0 < unsolvable.sum() < num_levels
    wanted = np.where(unsolvable, 0, 1 - 0.9 * np.minimum(away, STEPS) / STEPS)
    np.testing.assert_allclose(optimum, wanted, atol=1e-6)
    most = np.repeat(np.asarray(optimum), episodes)
    for noise, seed in ((1.0, 0), (0.2, 1)):
        reward, ended = played(levels, left, noise, jax.random.key(seed), episodes)
        returns = np.asarray(reward).sum(0)
        assert (returns <= most + 1e-6).all()
        assert (returns[np.repeat(unsolvable, episodes)] == 0).all()
        assert (regret((reward, ended), optimum) >= -1e-6).all()
        assert (returns > 0).any()
    found = regret(played(levels, left, 0.0, jax.random.key(2)), optimum)
    np.testing.assert_allclose(found, 0, atol=1e-6)


def test_a_shortest_way_has_no_regret_and_no_return_beats_the_optimum():
    checked(40, 5)


def test_none_of_100_000_returns_beats_the_optimum():
    """100,000 of random actions, and as many of four in five on the shortest way, on 2,000 levels."""
    checked(2000, 50)
