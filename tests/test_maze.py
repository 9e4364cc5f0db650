"""The maze against MiniGrid 3.2.0, an environment of the same view, and levels against their drawings."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy, tree
from evorl.agents import PPO
from evorl.cli import play, train
from evorl.envs import check_env
from evorl.envs.maze import LevelTable, Maze, RandomWalls, hash_level, ood
from evorl.envs.wrappers import RewardTransform
from evorl.errors import OptionError
from evorl.spaces import Box, Dict, Discrete
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from minigrid.core.grid import Grid
    from minigrid.core.mission import MissionSpace
    from minigrid.core.world_object import Goal, Wall
    from minigrid.minigrid_env import MiniGridEnv
    from minigrid.wrappers import FullyObsWrapper

EMPTY, WALL = (1, 0, 0), (2, 5, 0)
SIZES = [(5, 5), (7, 12), (13, 13), (19, 6), (19, 19)]
DRAWING = """
    ..#.
    .v#.
    ...G"""


class Reference(MiniGridEnv):
    """MiniGrid with the walls, start and goal of one of our levels."""

    def __init__(self, level, **options):
        self.level = level
        space = MissionSpace(mission_func=lambda: "find the goal")
        super().__init__(space, width=level.width + 2, height=level.height + 2, **options)

    def _gen_grid(self, width, height):
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        for y, x in np.argwhere(np.asarray(self.level.grid)):
            self.put_obj(Wall(), x + 1, y + 1)
        self.put_obj(Goal(), *(np.asarray(self.level.goal) + 1))
        self.agent_pos, self.agent_dir = tuple(np.asarray(self.level.agent) + 1), int(self.level.direction)
        self.mission = "find the goal"


def agrees(env, num_levels, num_steps, seed):
    """Whether episodes of random actions are the same in both, observation by observation, anew where one has ended."""
    rng = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed), num_levels)
    drawn = jax.device_get(jax.jit(jax.vmap(env.levels.sample, (0, None)))(keys, env.default_params))
    start, step = jax.jit(env.reset_to_level), jax.jit(env.step)
    for i in range(num_levels):
        level = tree.index(drawn, i)
        see = env.see_through_walls
        other = Reference(level, see_through_walls=see, agent_view_size=env.view_size, max_steps=env.max_episode_steps)
        other = FullyObsWrapper(other) if env.full_view else other
        theirs, ended = other.reset()[0], False
        state, ours = start(keys[i], level)
        for _ in range(num_steps):
            if ended:
                theirs, (state, ours) = other.reset()[0], start(keys[i], level)
            np.testing.assert_array_equal(ours["image"], theirs["image"].transpose(1, 0, 2))
            assert ours["direction"] == theirs["direction"]
            action = rng.choice(7, p=(0.2, 0.15, 0.45, 0.05, 0.05, 0.05, 0.05))
            theirs, reward, terminated, truncated, _ = other.step(action)
            state, timestep = step(keys[i], state, action, None)
            ours, ended = timestep.obs, terminated or truncated
            np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6)
            assert (timestep.terminated, timestep.truncated) == (terminated, truncated and not terminated)


@pytest.mark.program
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("see_through_walls", [True, False], ids=["seen through", "occluded"])
def test_it_is_minigrid(size, see_through_walls):
    height, width = size
    walls = RandomWalls(height, width, fewest=0, most=height * width // 2)
    env = Maze(walls, view_size=5 + 2 * (height % 4), max_episode_steps=30, normalize=False)
    agrees(Maze(walls, env.view_size, 30, see_through_walls=see_through_walls, normalize=False), 20, 50, seed=height)


@pytest.mark.program
def test_the_full_view_is_minigrids():
    agrees(Maze(RandomWalls(6, 9, 10, 20), max_episode_steps=30, full_view=True, normalize=False), 10, 50, seed=0)


@pytest.mark.program
@pytest.mark.parametrize("see_through_walls", [True, False], ids=["seen through", "occluded"])
def test_ten_thousand_steps_are_minigrids(see_through_walls):
    for size in range(5, 20, 2):
        walls = RandomWalls(size, size, fewest=0, most=size * size // 2)
        env = Maze(walls, max_episode_steps=100, see_through_walls=see_through_walls, normalize=False)
        agrees(env, num_levels=10, num_steps=125, seed=size)


def test_the_view_in_numbers():
    env = Maze(LevelTable((DRAWING,)), view_size=3)
    _, obs = env.reset(jax.random.key(0), env.default_params)
    assert env.observation_space == Dict({"image": Box(0.0, 1.0, (3, 3, 3)), "direction": Discrete(4)})
    # looking down from (1, 1), its right hand to the left: the border, then (2, 2), (1, 2), (0, 2), then its own row
    border, row, own = [WALL] * 3, [EMPTY] * 3, [WALL, EMPTY, EMPTY]
    np.testing.assert_allclose(obs["image"], np.array([border, row, own]) / 10, rtol=1e-6)
    assert obs["direction"] == 1
    _, obs = Maze(LevelTable((DRAWING,)), view_size=3, see_agent=True, normalize=False).reset(
        jax.random.key(0), env.default_params
    )
    np.testing.assert_array_equal(obs["image"][2, 1], [10, 0, 1])


def test_an_episode_by_hand():
    env = Maze(LevelTable((DRAWING,)), max_episode_steps=5, num_actions=3)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    step = jax.jit(env.step)
    for action, place in ((2, [1, 2]), (0, [1, 2]), (2, [2, 2])):
        state, timestep = step(jax.random.key(0), state, action, None)
        np.testing.assert_array_equal(state.position, place)
        assert timestep.reward == 0
        assert (timestep.terminated, timestep.truncated) == (False, False)
    late, _ = step(jax.random.key(0), state, 0, None)
    state, timestep = step(jax.random.key(0), state, 2, None)
    np.testing.assert_allclose(timestep.reward, 1 - 0.9 * 4 / 5, rtol=1e-6)
    assert (timestep.terminated, timestep.truncated) == (True, False)
    _, timestep = step(jax.random.key(0), late, 0, None)
    assert (timestep.terminated, timestep.truncated) == (False, True)
    _, timestep = step(jax.random.key(0), late.replace(direction=jnp.int32(0)), 2, None)  # the goal in the last step
    assert (timestep.terminated, timestep.truncated) == (True, False)


def test_the_wrong_goal_ends_the_episode_with_nothing():
    env = Maze(LevelTable((".>d\n..G",)))
    state, _ = env.reset(jax.random.key(0), env.default_params)
    _, timestep = env.step(jax.random.key(0), state, jnp.int32(2), None)
    assert (timestep.reward, timestep.terminated) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view_size": 4}, "view_size=4: must be odd, from 3 to 31"),
        ({"num_actions": 5}, "num_actions=5: must be 3 or 7"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"time_penalty": 2.0}, "time_penalty=2.0: must be from 0 to 1"),
    ],
)
def test_mazes_that_cannot_be_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Maze(**options)


@pytest.mark.program
def test_it_is_an_environment():
    check_env(Maze(RandomWalls(4, 5, 2, 9, solvable=True), max_episode_steps=20, see_agent=True), episodes=3)


@pytest.mark.program
def test_metrics_of_the_levels_are_in_the_log():
    env = Maze(RandomWalls(5, 5, 3, 3, replacement=False, solvable=True), max_episode_steps=10, num_actions=3)
    agent = PPO(hidden=(8,))
    delayed = RewardTransform(env, delay=3)
    for played in (env, delayed):
        workflow = OnPolicy(played, agent, num_envs=4, num_steps=4, num_epochs=1, batch_size=16, eval_episodes=4)
        state = workflow.init(jax.random.key(0))
        _, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
        assert (metrics["walls"], metrics["solvable"]) == (3, 1)
        assert 1 <= metrics["path_length"] <= 24


@pytest.mark.program
@pytest.mark.parametrize(("num_envs", "limit"), [(8, 1), (1, 20), (32, 20)])
def test_every_episode_is_on_a_level_that_nothing_has_used(num_envs, limit):
    env = Maze(RandomWalls(7, 7, 10, 20), max_episode_steps=limit)
    world = EnvBatch(env, env.default_params, jnp.int32(0), num_envs)
    policy = lambda obs, memory, keys: (jax.vmap(env.action_space.sample)(keys), memory, {})  # noqa: E731
    begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, jax.random.key(0))

    def advance(playing, _):
        envs, tally, _ = playing
        return step(playing, None)[0], (tally.episodes, jax.vmap(hash_level)(envs.env_state.level))

    _, (episode, level) = jax.jit(lambda: jax.lax.scan(advance, begin, length=200))()
    index = np.broadcast_to(np.arange(num_envs), episode.shape)
    episodes = np.unique(np.stack([index.ravel(), np.ravel(episode)]), axis=1).shape[1]
    levels = np.unique(np.asarray(level).reshape(-1, 2), axis=0).shape[0]
    assert episodes == levels >= num_envs * 200 // limit


@pytest.mark.program
@pytest.mark.parametrize("env", ["maze", "frames"])
def test_a_trained_run_is_played_on_the_test_set(env, tmp_path, capsys):
    tiny = ["num_envs=4", "num_steps=16", "batch_size=64", "eval_episodes=4", "agent.hidden=[8]"]
    train.main(
        ["agent=ppo", f"env={env}", "iterations=1", *(f"agent.workflow.{x}" for x in tiny), f"run_dir={tmp_path}/run"]
    )
    found = play.play_run(play.PlayOptions(str(tmp_path / "run"), episodes=2, suite="ood"))
    assert list(found) == ["as trained", *ood.LEVELS, "mean", "mean without PerfectMazeXL"]
    rates = [found[name][2][0] for name in ood.LEVELS]
    assert found["mean"][2][0] == pytest.approx(np.mean(rates))
    assert found["mean without PerfectMazeXL"][2][0] == pytest.approx(np.mean(rates[:-1]))
    for row in found.values():
        assert all(0 <= mean <= 1 for mean, _, _ in row)
    assert capsys.readouterr().out.count("| PerfectMaze") == 3
