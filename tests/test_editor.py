from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import check_env
from evorl.envs.maze import LevelTable, Maze, MazeEditor, RandomWalls, edits, paths, to_str
from evorl.envs.maze.levels import AGENT_SYMBOLS
from evorl.errors import OptionError
from evorl.spaces import Discrete
from evorl.types import EditableLevelEnv, EditorEnv

MAZE = Maze(RandomWalls(3, 4, 5, 5), max_episode_steps=20)
RESET, STEP = (jax.jit(function, static_argnums=0) for function in (MazeEditor.reset, MazeEditor.step))


def made(editor, actions):
    """The states and observations of an episode with these actions, and its last time step."""
    state, obs = RESET(editor, jax.random.key(0), None)
    states, seen = [state], [obs]
    for i, action in enumerate(actions):
        state, timestep = STEP(editor, jax.random.key(1 + i), state, jnp.int32(action), None)
        states.append(state)
        seen.append(timestep.obs)
    return states, seen, timestep


def drawn(level):
    """Its drawing, with any direction as >."""
    return to_str(level).translate(str.maketrans(dict.fromkeys(AGENT_SYMBOLS, ">")))


def test_a_maze_is_edited_with_its_own_number_of_walls():
    assert isinstance(MAZE, EditableLevelEnv)
    assert isinstance(MAZE.make_editor(), EditorEnv)
    assert (MAZE.make_editor().num_walls, MAZE.make_editor().max_episode_steps) == (5, 7)
    paper = Maze().make_editor()
    assert (paper.action_space, paper.max_episode_steps) == (Discrete(169), 62)
    assert paper.observation_space.parts["image"].shape == (15, 15, 3)
    assert paper.observation_space.parts["step"] == Discrete(63)
    assert paper.observation_space.parts["random"].shape == (50,)
    assert Maze(LevelTable((">G",))).make_editor().num_walls == 60


def test_walls_come_first_then_goal_and_start_and_walls_below_them_vanish():
    states, _, timestep = made(MAZE.make_editor(), [0, 3, 3, 6, 9, 6, 0])
    level = MAZE.make_editor().get_level(states[-1])
    assert drawn(level) == ">..#\n..G.\n.#.."
    assert drawn_walls(states) == [0, 1, 2, 2, 3, 4, 3, 2]
    assert (float(timestep.reward), bool(timestep.terminated), bool(timestep.truncated)) == (0.0, True, False)
    assert paths.path_length(level) == 3


def drawn_walls(states):
    return [int(state.level.grid.sum()) for state in states]


def test_the_drawing_equals_one_made_in_numpy(key):
    """Of many random episodes without a start on the goal."""
    actions = np.array(jax.random.randint(key, (40, 7), 0, 12))
    actions[:, 6] = np.where(actions[:, 6] == actions[:, 5], (actions[:, 6] + 1) % 12, actions[:, 6])
    editor = MAZE.make_editor()

    def level(actions, key):
        def step(state, action):
            return editor.step(key, state, action, None)[0], None

        return jax.lax.scan(step, editor.reset(key, None)[0], actions)[0].level

    found = jax.jit(jax.vmap(level))(jnp.asarray(actions), jax.random.split(key, 40))
    for i, (*walls, goal, start) in enumerate(actions):
        cells = np.full(12, ".")
        cells[walls], cells[goal], cells[start] = "#", "G", ">"
        assert drawn(jax.tree.map(lambda x, i=i: x[i], found)) == "\n".join(map("".join, cells.reshape(3, 4)))
    assert set(np.asarray(found.direction).tolist()) == {0, 1, 2, 3}


def test_a_start_on_the_goal_is_drawn_from_all_other_cells_alike(key):
    """By a chi-square test on the eleven of them, of which one is a wall that vanishes."""
    from scipy import stats

    editor = MazeEditor(MAZE.levels, num_walls=1, num_random=0)

    def end(key):
        state, _ = editor.reset(key, None)
        for cell in (2, 7, 7):
            state, _ = editor.step(key, state, jnp.int32(cell), None)
        return state

    ends = jax.jit(jax.vmap(end))(jax.random.split(key, 4400))
    cells = np.asarray(ends.level.agent) @ np.array([1, 4])
    counts = np.bincount(cells, minlength=12)
    assert counts[7] == 0
    assert stats.chisquare(np.delete(counts, 7)).pvalue > 1e-3
    assert not ends.level.grid[cells == 2].any()
    assert ends.level.grid[cells != 2].sum() == (cells != 2).sum()


def test_the_first_action_may_set_the_number_of_walls():
    editor = MazeEditor(MAZE.levels, num_walls=4, num_random=0, first_sets_number=True)
    assert editor.max_episode_steps == 7
    # round(4 * 5 / 12) = 2 walls, then goal and start; what comes after does nothing
    states, seen, timestep = made(editor, [5, 1, 2, 11, 8, 3, 9])
    assert drawn(states[-1].level) == ".##.\n....\n>..G"
    assert drawn_walls(states) == [0, 0, 1, 2, 2, 2, 2, 2]
    assert timestep.terminated
    assert [int(obs["step"]) for obs in seen] == list(range(8))
    none, _, _ = made(editor, [0, 11, 8, 1, 2, 3, 9])
    assert drawn(none[-1].level) == "....\n....\n>..G"


def test_it_sees_the_bordered_maze_the_step_and_new_random_numbers():
    states, seen, _ = made(MAZE.make_editor(), [0, 3, 3, 6, 9, 6, 0])
    whole = Maze(RandomWalls(3, 4, 5, 5), full_view=True)
    of_student, _ = whole.reset_to_level(jax.random.key(0), states[-1].level)
    np.testing.assert_array_equal(seen[-1]["image"], whole.observe(of_student)["image"])
    empty = np.asarray(seen[0]["image"])
    assert empty.shape == (5, 6, 3)
    np.testing.assert_allclose(empty[1:-1, 1:-1], np.broadcast_to([0.1, 0, 0], (3, 4, 3)))  # MiniGrid's empty cell
    np.testing.assert_allclose(empty[0], np.broadcast_to([0.2, 0.5, 0], (6, 3)))  # and its wall
    np.testing.assert_allclose(seen[6]["image"][2, 3], [0.8, 0.1, 0])  # and its green goal
    noise = np.stack([obs["random"] for obs in seen])
    assert len(np.unique(noise)) == noise.size == 8 * 50
    assert (noise.min() >= 0) & (noise.max() < 1)


def test_a_maze_says_what_its_teacher_sees_and_sets():
    maze = replace(MAZE, editor_num_random=3, editor_first_sets_number=True)
    assert maze.make_editor() == MazeEditor(maze.levels, MAZE.levels.most, num_random=3, first_sets_number=True)


@pytest.mark.program
@pytest.mark.parametrize("first", [False, True])
def test_it_is_an_environment_as_evorl_needs_it(first, capsys):
    check_env(MazeEditor(MAZE.levels, num_walls=3, num_random=2, first_sets_number=first), episodes=3)
    assert "all 3 episodes were terminated at step" in capsys.readouterr().err  # which is right here


@pytest.mark.program
def test_made_levels_can_be_played_and_mutated(key):
    level = made(MAZE.make_editor(), [0, 3, 3, 6, 9, 6, 0])[0][-1].level
    template = MAZE.sample_level(key, MAZE.default_params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), level) == jax.tree.map(lambda x: (x.shape, x.dtype), template)
    assert MAZE.is_same_level(level, MAZE.get_level(MAZE.reset_to_level(key, level)[0]))
    assert edits.mutate(key, level, 2).height == 3


def test_refuses_what_cannot_be():
    with pytest.raises(OptionError, match="num_walls=-1"):
        MazeEditor(MAZE.levels, num_walls=-1)
    with pytest.raises(OptionError, match="num_random=-1"):
        MazeEditor(MAZE.levels, num_random=-1)
