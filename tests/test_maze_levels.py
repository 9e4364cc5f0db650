"""Levels as data, their paths against an independent search, generators, edits, and the test set's facts."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl import tree
from evorl.envs import maze
from evorl.envs.maze import LevelTable, RandomWalls, edits, ood, paths
from evorl.errors import OptionError

DRAWING = ".#G.\n>#.#\n...c"
HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def drawn(source, n, seed=0):
    keys = jax.random.split(jax.random.key(seed), n)
    return jax.jit(jax.vmap(source.sample, (0, None)))(keys, source.default_params)


def searched(grid, agent, goal):
    """Moves from the start to every cell by breadth-first search, -1 where there is no way."""
    height, width = grid.shape
    found = np.full(grid.shape, -1)
    found[agent[1], agent[0]] = 0
    queue = deque([tuple(agent)])
    while queue:
        x, y = queue.popleft()
        for dx, dy in HEADINGS:
            a, b = x + dx, y + dy
            if 0 <= a < width and 0 <= b < height and not grid[b, a] and found[b, a] < 0:
                found[b, a] = found[y, x] + 1
                queue.append((a, b))
    return found[goal[1], goal[0]], found


def searched_with_turns(grid, agent, direction, goal):
    height, width = grid.shape
    start = (*agent, direction)
    found, queue = {start: 0}, deque([start])
    while queue:
        x, y, d = queue.popleft()
        if (x, y) == tuple(goal):
            return found[x, y, d]
        a, b = x + HEADINGS[d][0], y + HEADINGS[d][1]
        ahead = [(a, b, d)] if 0 <= a < width and 0 <= b < height and not grid[b, a] else []
        for after in [(x, y, (d + 1) % 4), (x, y, (d - 1) % 4), *ahead]:
            if after not in found:
                found[after] = found[x, y, d] + 1
                queue.append(after)
    return -1


@pytest.mark.program
@pytest.mark.parametrize(
    ("source", "n"),
    [
        (RandomWalls(13, 13), 6000),
        (RandomWalls(13, 13, fewest=25, most=100), 2000),
        (RandomWalls(7, 11, fewest=0, most=40), 1500),
        (RandomWalls(40, 40, fewest=300, most=700), 400),
        (ood.PerfectMaze(20), 100),
    ],
    ids=["sixty", "many", "oblong", "two words wide", "perfect"],
)
def test_paths_are_those_of_a_search_on_ten_thousand_levels(source, n):
    levels = drawn(source, n)
    lengths, actions = jax.jit(jax.vmap(lambda x: (paths.path_length(x), paths.count_min_actions(x))))(levels)
    grids, agents, directions, goals = map(np.asarray, (levels.grid, levels.agent, levels.direction, levels.goal))
    wanted = [searched(*level)[0] for level in zip(grids, agents, goals, strict=True)]
    np.testing.assert_array_equal(lengths, wanted)
    some = slice(0, n // 10)
    levels = zip(grids[some], agents[some], directions[some], goals[some], strict=True)
    np.testing.assert_array_equal(actions[some], [searched_with_turns(*level) for level in levels])


def test_distances_are_those_of_a_search():
    levels = drawn(RandomWalls(9, 40, fewest=50, most=150), 50)
    found = jax.jit(jax.vmap(paths.goal_distances))(levels)
    for grid, goal, distances in zip(*map(np.asarray, (levels.grid, levels.goal, found)), strict=True):
        np.testing.assert_array_equal(distances, searched(grid, goal, goal)[1])


@pytest.mark.program
def test_the_optimal_return_is_what_the_shortest_way_gives():
    level = maze.from_str("v.\n.G")  # ahead, turn left, ahead
    assert paths.count_min_actions(level) == 3
    np.testing.assert_allclose(paths.optimal_return(level, 10), 1 - 0.9 * 3 / 10, rtol=1e-6)
    assert paths.optimal_return(level, 2) == 0
    assert paths.optimal_return(maze.from_str(">#G")) == 0
    env = maze.Maze(LevelTable(("v.\n.G",)), max_episode_steps=10)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    for action in (2, 0, 2):
        state, timestep = env.step(jax.random.key(0), state, jnp.int32(action), None)
    np.testing.assert_allclose(timestep.reward, paths.optimal_return(level, 10), rtol=1e-6)


def test_a_way_does_not_lead_over_the_wrong_goal():
    assert paths.path_length(maze.from_str(">dG\n...")) == 4
    assert paths.path_length(maze.from_str(">dG")) == -1


def test_drawings_are_levels():
    level = maze.from_str(DRAWING)
    assert maze.to_str(level) == DRAWING
    np.testing.assert_array_equal(level.grid, [[0, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(level.walls, [[2], [10], [0]])
    assert (level.agent.tolist(), level.direction, level.goal.tolist(), level.clue.tolist()) == (
        [0, 1],
        0,
        [2, 0],
        [3, 2],
    )
    levels = drawn(RandomWalls(5, 37, 3, 60), 5)
    for i in range(5):
        level = tree.index(levels, i)
        assert maze.equal(level, maze.from_str(maze.to_str(level)))


@pytest.mark.parametrize(
    ("drawing", "message"),
    [("", "same length"), (">G\n.", "same length"), (">.", "no goal"), ("G.", "no agent"),
     (">GG", "more than one goal"), (">x", "a cell must be one of"), (">R<", "more than one agent")],
)  # fmt: skip
def test_drawings_that_are_no_levels_are_refused(drawing, message):
    with pytest.raises(OptionError, match=message):
        maze.from_str(drawing)


def test_padding_changes_no_way_and_no_view():
    level = maze.from_str(DRAWING)
    larger = maze.pad(level, 6, 35)
    assert larger.walls.shape == (6, 2)
    np.testing.assert_array_equal(larger.grid[:3, :4], level.grid)
    assert larger.grid.sum() == level.grid.sum() + 6 * 35 - 3 * 4
    assert paths.path_length(larger) == paths.path_length(level) == 5
    env = maze.Maze(LevelTable((DRAWING,)))
    np.testing.assert_array_equal(*(env.reset_to_level(jax.random.key(0), x)[1]["image"] for x in (level, larger)))
    with pytest.raises(OptionError, match="at least"):
        maze.pad(level, 2, 9)


def test_fingerprints_tell_levels_apart():
    levels = drawn(RandomWalls(13, 13), 4096)
    found = np.asarray(jax.vmap(maze.hash_level)(levels))
    assert len(np.unique(found, axis=0)) == 4096
    level = maze.from_str(DRAWING)
    others = [
        level.replace(direction=jnp.int32(1)),
        level.replace(goal=jnp.array([3, 0])),
        maze.from_str(DRAWING.replace(".#G", "#.G")),
    ]
    assert maze.equal(level, maze.from_str(DRAWING))
    for other in others:
        assert not maze.equal(level, other)
        assert (maze.hash_level(level) != maze.hash_level(other)).any()


@pytest.mark.program
def test_walls_are_drawn_as_asked():
    n = 2000
    drawn_walls = np.asarray(drawn(RandomWalls(5, 6, 10, 10), n).grid)
    expected = 1 - (1 - 1 / 30) ** 10  # of a cell, with replacement
    assert abs(drawn_walls.mean() - expected) < 4 * np.sqrt(expected / (30 * n))
    assert (np.asarray(drawn(RandomWalls(5, 6, 10, 10, replacement=False), 200).grid).sum((1, 2)) == 10).all()
    counts = np.asarray(drawn(RandomWalls(5, 6, 3, 7, replacement=False), n).grid).sum((1, 2))
    assert stats.chisquare(np.bincount(counts, minlength=8)[3:]).pvalue > 1e-3
    assert counts.min() >= 3


def test_starts_and_goals_are_uniform_over_free_cells_and_apart():
    levels = drawn(RandomWalls(3, 3, 2, 2, replacement=False), 6000)
    grid, agent, goal = map(np.asarray, (levels.grid, levels.agent, levels.goal))
    rows = np.arange(len(grid))
    for cell in (agent, goal):
        assert not grid[rows, cell[:, 1], cell[:, 0]].any()
    assert (agent != goal).any(1).all()
    pairs = (agent[:, 1] * 3 + agent[:, 0]) * 9 + goal[:, 1] * 3 + goal[:, 0]
    counts = np.bincount(pairs, minlength=81).reshape(9, 9)
    assert stats.chisquare(counts[~np.eye(9, dtype=bool)]).pvalue > 1e-3
    assert stats.chisquare(np.bincount(np.asarray(levels.direction))).pvalue > 1e-3


@pytest.mark.program
def test_solvable_levels_are_those_that_can_be_solved():
    source = RandomWalls(6, 6, 18, 18, replacement=False)
    lengths = jax.vmap(paths.path_length)(drawn(source, 500))
    assert (lengths < 0).mean() > 0.2
    solvable = RandomWalls(6, 6, 18, 18, replacement=False, solvable=True)
    found = np.asarray(jax.vmap(paths.path_length)(drawn(solvable, 500)))
    assert (found > 0).all()
    assert stats.ks_2samp(found, lengths[lengths > 0]).pvalue > 1e-3


def test_counts_may_differ_between_copies():
    source = RandomWalls(5, 5, 0, 20, replacement=False)
    params = jax.tree.map(
        lambda *x: jnp.stack(x),
        *(source.default_params.replace(fewest=jnp.int32(n), most=jnp.int32(n)) for n in (0, 7, 20)),
    )
    levels = jax.jit(jax.vmap(source.sample, (None, 0)))(jax.random.key(0), params)
    assert levels.grid.sum((1, 2)).tolist() == [0, 7, 20]


def test_a_table_gives_each_of_its_levels():
    source = LevelTable((">.G", "G.<"), any_direction=True)
    levels = drawn(source, 400)
    assert set(levels.goal[:, 0].tolist()) == {0, 2}
    assert set(levels.direction.tolist()) == {0, 1, 2, 3}
    with pytest.raises(OptionError, match="same size"):
        LevelTable((">.G", ">.\n.G"))


@pytest.mark.parametrize("edit", edits.EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_changes_one_thing(edit):
    levels = drawn(RandomWalls(6, 7, 5, 30), 200)
    after = jax.jit(jax.vmap(edit))(jax.random.split(jax.random.key(1), 200), levels)
    walls = np.asarray(after.grid).astype(int) - np.asarray(levels.grid)
    changed = {
        "keep_unchanged": (0, 0, 0), "flip_wall": (1, 0, 0), "add_wall": (1, 0, 0), "remove_wall": (1, 0, 0),
        "move_goal": (0, 1, 0), "move_agent": (0, 0, 1),
    }[edit.__name__]  # fmt: skip
    assert (np.abs(walls).sum((1, 2)) == changed[0]).all()
    assert ((after.goal != levels.goal).any(1) == changed[1]).all()
    assert ((after.agent != levels.agent).any(1) == changed[2]).all()
    signs = {"add_wall": {1}, "remove_wall": {-1}, "flip_wall": {1, -1}}.get(edit.__name__, {0})
    assert set(walls.sum((1, 2)).tolist()) == signs
    sound(after)


def sound(levels):
    """Start and goal are apart and on free cells."""
    rows = np.arange(len(levels.grid))
    for cell in (levels.agent, levels.goal):
        assert not np.asarray(levels.grid)[rows, cell[:, 1], cell[:, 0]].any()
    assert (levels.agent != levels.goal).any(1).all()


def test_edits_where_there_is_no_room_change_nothing():
    full, empty = maze.from_str(">G\n##"), maze.from_str(">G")
    key = jax.random.key(0)
    for edit in (edits.add_wall, edits.move_goal, edits.move_agent):
        assert maze.equal(edit(key, full), full)
    assert maze.equal(edits.remove_wall(key, empty), empty)


@pytest.mark.program
def test_mutations_and_crossovers_are_levels():
    keys = jax.random.split(jax.random.key(2), 200)
    a, b = drawn(RandomWalls(6, 7, 5, 30), 200), drawn(RandomWalls(6, 7, 5, 30), 200, seed=1)
    mutated = jax.jit(jax.vmap(lambda key, level: edits.mutate(key, level, 20)))(keys, a)
    sound(mutated)
    assert not jax.vmap(maze.equal)(mutated, a).any()
    child = jax.jit(jax.vmap(edits.crossover))(keys, a, b)
    sound(child)
    walls = np.asarray(child.grid)
    assert (walls <= np.asarray(a.grid) | np.asarray(b.grid)).all()
    one_of_them = [(child.goal == x.goal).all(1) & (child.agent == x.agent).all(1) for x in (a, b)]
    assert (one_of_them[0] | one_of_them[1]).all()
    assert 50 < one_of_them[0].sum() < 150


FACTS = {  # the name: size, walls, ways
    "SixteenRooms": (13, 46, {20}), "SixteenRooms2": (13, 53, {22}), "Labyrinth": (13, 72, {96}),
    "LabyrinthFlipped": (13, 72, {96}), "Labyrinth2": (13, 72, {96}), "StandardMaze": (13, 73, {40}),
    "StandardMaze2": (13, 72, {56}), "StandardMaze3": (13, 71, {39}),
    "SmallCorridor": (13, 71, {13, 15, 17, 19, 21}), "LargeCorridor": (19, 161, {19, 21, 23, 25, 27, 29, 31, 33}),
    "Memory": (15, 47, {11}), "FourRooms": (17, 29, None), "Crossing": (9, None, None),
    "PerfectMaze": (13, 72, None), "PerfectMazeMedium": (19, 162, None), "PerfectMazeXL": (101, 5000, None),
}  # fmt: skip


@pytest.mark.program
@pytest.mark.parametrize("name", ood.LEVELS)
def test_the_mazes_of_the_test_set_have_their_facts(name):
    size, walls, lengths = FACTS[name]
    source = ood.LEVELS[name]
    levels = drawn(source, 4 if size > 100 else 128)
    found = jax.jit(jax.vmap(paths.path_length))(levels)
    assert (source.height, source.width) == (size, size)
    assert walls is None or (np.asarray(levels.grid).sum((1, 2)) == walls).all()
    assert (found > 0).all()
    assert lengths is None or set(found.tolist()) == lengths


def test_steps_of_the_test_set():
    limits = {"FourRooms": 250, "Crossing": 484, "PerfectMaze": 450, "PerfectMazeMedium": 882, "PerfectMazeXL": 21218}
    assert {name: ood.episode_step_limit(name) for name in limits} == limits
    assert ood.episode_step_limit("Memory") == 578


def test_a_crossing_has_five_walls_each_with_one_opening():
    grids = np.asarray(drawn(ood.Crossing(), 200).grid)
    for grid in grids:
        lines = sum((line[np.arange(9) % 2 == 0]).sum() >= 4 for line in (*grid[1::2], *grid[:, 1::2].T))
        assert lines == 5
    assert len({grid.tobytes() for grid in grids}) > 190


def test_memory_shows_the_colour_of_the_true_goal():
    levels = drawn(ood.LEVELS["Memory"], 64)
    for i in range(64):
        goal, other, color = (np.asarray(x[i]).tolist() for x in (levels.goal, levels.distractor, levels.color))
        assert (goal, other, color) in [([9, 5], [9, 9], maze.levels.RED), ([9, 9], [9, 5], maze.levels.GREEN)]
    assert set(levels.color.tolist()) == {0, 1}
    env = ood.create_test_mazes(maze.Maze(view_size=7, normalize=False))["Memory"]
    for i in range(4):
        level = tree.index(levels, i)
        _, obs = env.reset_to_level(jax.random.key(0), level)  # it looks to the right; the clue is at its left hand
        np.testing.assert_array_equal(obs["image"][6, 2], [8, level.color, 0])


@pytest.mark.program
def test_doors_and_starts_are_anywhere():
    levels = drawn(ood.FourRooms(), 2000)
    doors = ~np.asarray(levels.grid)[:, 8]
    counts = doors.sum(0)
    assert (doors.sum(1) == 2).all()
    assert counts[8] == 0
    assert stats.chisquare(counts[:8]).pvalue > 1e-3
    assert stats.chisquare(counts[9:]).pvalue > 1e-3
    mazes = np.asarray(drawn(ood.PerfectMaze(7), 500).grid)
    assert len({grid.tobytes() for grid in mazes}) == 500


def test_a_maze_of_the_test_set_can_be_trained_on(key):
    one = ood.OODLevels("Memory")
    assert (one.height, one.width) == (15, 15)
    assert bool(maze.equal(one.sample(key, one.default_params), ood.LEVELS["Memory"].sample(key, None)))
    with pytest.raises(OptionError, match="unknown maze Memories; did you mean Memory"):
        ood.OODLevels("Memories")
