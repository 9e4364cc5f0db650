"""The arcade beside PufferLib's C as it was recorded and Gymnasium, and its rules by hand."""

import itertools
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from evorl import envs, tree
from evorl.envs import render
from evorl.envs.arcade import (
    Asteroids,
    Breakout,
    CartPole,
    ConnectFour,
    Freeway,
    Game2048,
    Pong,
    Snake,
    SpaceInvaders,
    Tetris,
    game_2048,
    screen,
    tetris,
)
from evorl.envs.arcade import connect_four as four
from evorl.envs.arcade import snake as snakes
from evorl.envs.arcade.game_2048 import Game2048State
from evorl.envs.sanity import Grid
from evorl.errors import OptionError
from evorl.spaces import ObsWithActionMask
from evorl.training.configuration import config, discovery
from evorl.training.configuration.parts import make_task
from tests.conftest import leaves_equal

RECORDED = Path(__file__).parent / "recorded" / "arcade"
PEERS = {
    "breakout": Breakout(), "connect_four": ConnectFour(), "freeway": Freeway(level=1), "pong": Pong(),
    "snake": Snake(), "tetris": Tetris(),
}  # fmt: skip
SHORT = {"max_episode_steps": 60}
GAMES = (
    Asteroids(**SHORT), Breakout(**SHORT), CartPole(**SHORT), ConnectFour(), Freeway(frameskip=200), Game2048(**SHORT),
    Pong(**SHORT), Snake(6, 6, 2, 2, **SHORT), SpaceInvaders(**SHORT), Tetris(**SHORT),
)  # fmt: skip
KEY = jax.random.key(0)


def begun(env, key=KEY):
    return jax.jit(env.reset)(key, env.default_params)[0]


@pytest.mark.parametrize("name", PEERS)
def test_a_game_is_that_of_the_c(name):
    """2,000 steps that scripts/benchmarks/peers_arcade.py has recorded; chance is copied, and the state where C began
    an episode, after which ours is left alone, but in Breakout every 50 steps. What is seen is that of every 16th.
    """
    env, file = PEERS[name], np.load(RECORDED / f"{name}.npz")
    like = jax.eval_shape(lambda: begun(env))
    starts = type(like)(**{field: jnp.asarray(file[f"starts.{field}"]) for field in vars(like)})
    which = jnp.cumsum(file["begins"]) - 1

    def step(state, row):
        action, chance, begins, start = row
        return env.advance(tree.select(begins, tree.index(starts, start), state), action, chance)

    rows = jax.tree.map(jnp.asarray, (file["action"], file["chance"], file["begins"], which))
    ours = jax.device_get(jax.jit(lambda: jax.lax.scan(step, tree.index(starts, 0), rows)[1])())
    np.testing.assert_array_equal(ours.terminated | ours.truncated, file["ended"])
    np.testing.assert_allclose(ours.reward, file["reward"], atol=1e-4)
    shown = ~file["stale"][::16]
    obs = ours.obs["obs"] if isinstance(ours.obs, dict) else ours.obs
    np.testing.assert_allclose(obs[::16][shown].astype(float), file["obs"][shown], atol=1e-4)
    assert len(np.unique(file["reward"])) >= 2  # else it says little


def test_cartpole_is_that_of_gymnasium():
    """Whose numbers are of 64 bits, from which ours would drift: the pole magnifies what differs."""
    env, theirs = CartPole(), gymnasium.make("CartPole-v1", max_episode_steps=200)
    step, rng = jax.jit(env.step), np.random.default_rng(0)
    state, steps = None, 0
    for i in range(2000):
        if state is None:
            state, obs = env.reset(jax.random.key(i), None)
            theirs.reset()
            theirs.unwrapped.state = tuple(map(float, obs))
            steps = 0
        action = int(rng.integers(2)) if rng.random() < 0.5 else int(obs[2] + obs[3] > 0)
        state, timestep = step(KEY, state, jnp.int32(action), None)
        seen, reward, terminated, truncated, _ = theirs.step(action)
        obs, steps = timestep.obs, steps + 1
        np.testing.assert_allclose(obs, seen, atol=1e-4)
        assert (float(timestep.reward), bool(timestep.terminated)) == (reward, terminated)
        assert bool(timestep.truncated) == truncated
        if steps % 50 == 0:
            theirs.unwrapped.state = tuple(map(float, obs))
        state = None if terminated or truncated else state


@pytest.mark.program
@pytest.mark.parametrize("env", GAMES, ids=lambda env: type(env).__name__)
def test_a_game_meets_the_protocol(env):
    envs.check_env(env, episodes=2)


@pytest.mark.parametrize("env", GAMES, ids=lambda env: type(env).__name__)
def test_a_screen_is_seen_and_drawn(env, tmp_path):
    seeing = replace(env, image=True)
    state, obs = jax.jit(seeing.reset)(KEY, ())
    space, seen = seeing.observation_space, obs
    if isinstance(space, ObsWithActionMask):
        space, seen = space.space, obs["obs"]
    assert (seen.shape, seen.dtype, space.dtype) == (space.shape, jnp.uint8, "uint8")
    assert len(np.unique(np.asarray(seen).reshape(-1, 3), axis=0)) > 1 or isinstance(env, ConnectFour)
    gif, png, *_ = render.save_episode(env, [state, state], tmp_path)
    assert (gif.suffix, png.suffix) == (".gif", ".png")
    with Image.open(png) as picture:
        assert picture.height >= 480
    assert len(env.action_meanings) == env.action_space.n


@pytest.mark.parametrize(
    "env", [env for env in GAMES if not isinstance(env, ConnectFour)], ids=lambda e: type(e).__name__
)
def test_a_time_limit_truncates(env):
    late = replace(begun(env), steps=jnp.int32(env.max_episode_steps - 1))
    _, timestep = jax.jit(env.step)(KEY, late, jnp.int32(0), ())
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (False, True)


@pytest.mark.program
def test_games_by_name():
    names = [name for name in discovery.find_choices("env") if name.startswith("arcade/")]
    assert len(names) == 11
    made = [make_task(config.to_plain_data(config.compose_config([f"env={name}"]))) for name in names]
    assert {type(env).__name__ for env in made} == {type(env).__name__ for env in GAMES} | {"Grid"}
    assert make_task(config.to_plain_data(config.compose_config(["env=arcade/pong", "env.frameskip=1"]))) == Pong(
        frameskip=1
    )


def test_wrong_options_are_refused():
    for make in (lambda: Pong(frameskip=0), lambda: Freeway(level=8), lambda: Snake(food=0), lambda: Snake(2, 2, 4)):
        with pytest.raises(OptionError):
            make()


def test_pong_serves_up_too_and_shows_its_scores():
    env = Pong()
    served = {int(env.chance(jax.random.key(i))) for i in range(20)}
    assert served == {-1, 0, 1}
    missed = replace(begun(env), x=jnp.float32(-5), y=jnp.float32(0), vx=jnp.float32(-10), scores=jnp.array([3, 19]))
    state, timestep = jax.jit(env.advance)(missed, jnp.int32(0), jnp.int32(1))
    np.testing.assert_allclose(timestep.obs[6:], [3 / 21, 20 / 21])
    np.testing.assert_allclose(
        timestep.obs[:4], [0.5, 0.5, 0.2, 304 / 640], atol=1e-6
    )  # the new round, not the old frame
    assert (float(timestep.reward), float(state.vy), bool(timestep.terminated)) == (1, 1, False)
    _, timestep = jax.jit(env.advance)(replace(missed, scores=jnp.array([3, 20])), jnp.int32(0), jnp.int32(1))
    assert timestep.terminated


def test_a_second_wall_of_breakout_ends_it():
    env = Breakout(frameskip=1)
    gone = jnp.full(6, (1 << 18) - 1, jnp.uint32).at[5].set((1 << 18) - 2)  # all but the lowest one on the left
    near = replace(
        begun(env), gone=gone, score=jnp.int32(863), served=jnp.bool_(True), x=jnp.float32(0), y=jnp.float32(123),
        vx=jnp.float32(0.1), vy=jnp.float32(-4),
    )  # fmt: skip
    state, timestep = jax.jit(env.advance)(near, jnp.int32(0), jnp.bool_(False))
    assert (float(timestep.reward), bool(timestep.terminated), int(state.score)) == (1, True, 864)
    assert float(timestep.obs[10:].sum()) == 108


def test_the_ball_of_breakout_is_drawn_where_it_is():
    env = Breakout()
    picture = np.asarray(env.render(replace(begun(env), x=jnp.float32(240), y=jnp.float32(210))))
    white = (picture == screen.WHITE).all(-1)  # the ball is 32 x 32, a pixel 6 x 6
    assert white[35:40, 40:45].all()
    assert white.sum() == 25


def test_the_wall_of_breakout_comes_back_once():
    env = Breakout(frameskip=1)
    falls = replace(
        begun(env), gone=jnp.full(6, (1 << 18) - 1, jnp.uint32), score=jnp.int32(432), served=jnp.bool_(True),
        x=jnp.float32(272), y=jnp.float32(278), vx=jnp.float32(0), vy=jnp.float32(4),
    )  # fmt: skip
    state, _ = jax.jit(env.advance)(falls, jnp.int32(0), jnp.bool_(False))
    assert int(state.gone.sum()) == 0
    assert (int(state.hits), float(state.vy) < 0) == (1, True)


def on_field(env, snake, food):
    """Return a state of Snake with the given cells of the snake, head first, and of the food."""
    cells = np.pad(np.zeros((env.height, env.width), np.int8), env.vision, constant_values=snakes.WALL)
    for cell, value in [*((one, snakes.FOOD) for one in food), (snake[0], snakes.HEAD)]:
        cells[cell] = value
    for cell, following in itertools.pairwise(reversed(snake)):
        cells[cell] = 1 + snakes.MOVES.tolist().index(np.subtract(following, cell).tolist())
    head, tail, cells = jnp.array(snake[0]), jnp.array(snake[-1]), jnp.asarray(cells)
    return snakes.SnakeState(cells, snakes.count_free_cells(cells), head, tail, jnp.int32(len(snake)), jnp.int32(0))


def test_snakes_turn_no_back_and_die_of_walls():
    env = Snake(4, 4, 1, 1)
    state = on_field(env, [(1, 2), (1, 1)], [(4, 4)])
    after, timestep = env.advance(state, jnp.int32(2), jnp.float32(0))  # to the left, where it came from
    assert leaves_equal(after, replace(on_field(env, [(1, 3), (1, 2)], [(4, 4)]), steps=jnp.int32(1)))
    assert float(timestep.reward) == 0
    _, timestep = env.advance(state, jnp.int32(0), jnp.float32(0))
    assert (float(timestep.reward), bool(timestep.terminated)) == (-1, True)


def test_a_snake_grows_by_food_which_comes_again():
    env = Snake(2, 2, 1, 1)
    after, timestep = env.advance(on_field(env, [(1, 1)], [(1, 2)]), jnp.int32(3), jnp.float32(0.99))
    assert leaves_equal(after, replace(on_field(env, [(1, 2), (1, 1)], [(2, 2)]), steps=jnp.int32(1)))
    assert float(timestep.reward) == pytest.approx(0.1)
    full, timestep = env.advance(on_field(env, [(2, 1), (1, 1), (1, 2)], [(2, 2)]), jnp.int32(3), jnp.float32(0.99))
    assert leaves_equal(full, replace(on_field(env, [(2, 2), (2, 1), (1, 1), (1, 2)], []), steps=jnp.int32(1)))
    assert float(timestep.reward) == pytest.approx(0.1)


def test_a_snake_that_bites_itself_dies():
    env = Snake(4, 4, 1, 1)
    state = on_field(env, [(2, 2), (2, 1), (1, 1), (1, 2)], [(4, 4)])
    after, timestep = env.advance(state, jnp.int32(0), jnp.float32(0))  # the tail leaves this cell only now
    assert (float(timestep.reward), bool(timestep.terminated)) == (-1, True)
    assert leaves_equal(after, replace(state, steps=jnp.int32(1)))


def test_lines_of_tetris():
    rows = jnp.zeros(20, jnp.uint32).at[16].set(1).at[17].set(1023).at[18].set(2).at[19].set(1023)
    left, lines = tetris.clear_lines(rows)
    assert left[-4:].tolist() == [0, 0, 1, 2]
    assert int(lines) == 2
    env = Tetris()
    well = jnp.zeros(20, jnp.uint32).at[16:].set(1023 - (1 << 5))
    upright = replace(begun(env), rows=well, piece=jnp.int32(1), column=jnp.int32(5))
    after, timestep = env.advance(upright, jnp.int32(tetris.HARD_DROP), jnp.int32(0))
    assert float(timestep.reward) == pytest.approx(16 * 0.02 + 1)
    assert int(after.rows.sum()) == 0
    full = replace(upright, rows=jnp.zeros(20, jnp.uint32).at[4:].set(1023 - 1))
    _, timestep = env.advance(full, jnp.int32(tetris.HARD_DROP), jnp.int32(0))
    assert timestep.terminated


def test_2048_by_hand():
    board = jnp.array([[1, 1, 1, 1], [2, 0, 2, 3], [0, 0, 0, 1], [1, 2, 3, 4]], jnp.int8)
    slid, reward = game_2048.slide_left(board)
    assert slid.tolist() == [[2, 2, 0, 0], [3, 3, 0, 0], [1, 0, 0, 0], [1, 2, 3, 4]]
    assert float(reward) == 4 + 4 + 8
    stuck = jnp.array([[1, 2, 1, 2], [2, 1, 2, 1], [1, 2, 1, 2], [2, 1, 2, 1]], jnp.int8)
    assert not game_2048.find_legal_moves(stuck).any()
    assert game_2048.find_legal_moves(stuck.at[0, 0].set(0)).tolist() == [True, True, False, False]
    state, timestep = Game2048().advance(Game2048State(board, jnp.int32(0)), jnp.int32(0), jnp.float32([0.99, 0.5]))
    assert int(state.board[2, 3]) == 1
    assert timestep.obs["legal"].all()


@pytest.mark.program
def test_the_opponent_of_connect_four_wins_and_blocks():
    """By hand: it takes three in a row to four; it stops three of ours."""
    env = ConnectFour()

    def state(ours, theirs):
        words = []
        for cells in (ours, theirs):
            bits = sum(1 << (7 * column + row) for column, row in cells)
            words.append((bits & 0xFFFFFFFF, bits >> 32))
        low, high = (jnp.array(part, jnp.uint32) for part in zip(*words, strict=True))
        return four.ConnectFourState(low, high)

    about_to_win = state([(0, 0), (0, 1), (1, 1)], [(1, 0), (2, 0), (3, 0)])
    after, timestep = env.advance(about_to_win, jnp.int32(6), jnp.float32(0))
    assert int(four.decode_board(after)[4, 0]) == -1
    assert (float(timestep.reward), bool(timestep.terminated)) == (-1, True)
    threatened = state([(2, 0), (2, 1)], [(6, 0), (0, 0)])
    after, timestep = env.advance(threatened, jnp.int32(2), jnp.float32(0))
    assert int(four.decode_board(after)[2, 3]) == -1
    assert (float(timestep.reward), bool(timestep.terminated)) == (0, False)
    ours = state([(2, 0), (2, 1), (2, 2)], [(6, 0), (0, 0), (5, 0)])
    _, timestep = env.advance(ours, jnp.int32(2), jnp.float32(0))
    assert (float(timestep.reward), bool(timestep.terminated)) == (1, True)
    full = state([(3, 0), (3, 2), (3, 4)], [(3, 1), (3, 3), (3, 5)])
    assert env.observe(full)["legal"].tolist() == [True] * 3 + [False] + [True] * 3
    _, timestep = env.advance(full, jnp.int32(3), jnp.float32(0))
    assert (float(timestep.reward), bool(timestep.terminated)) == (-1, True)


def test_the_opponent_counts_lines_as_a_plain_search_does():
    """The same sums by playing all moves, in Python."""
    rng, bits = np.random.default_rng(0), lambda words: int(words[0]) | int(words[1]) << 32

    def won(p):
        return any((m := p & p >> n) & m >> 2 * n for n in (1, 6, 7, 8))

    def count(pieces, others, depth):
        if won(others):
            return 10**depth
        if depth == 0:
            return 0
        mask = pieces | others
        moves = [(mask + (1 << 7 * c)) & ~mask & (63 << 7 * c) for c in range(7) if not mask >> (7 * c + 5) & 1]
        return -sum(count(others, pieces | move, depth - 1) for move in moves)

    for _ in range(4):
        boards, height = [0, 0], np.zeros(7, int)
        for i in range(13):
            column = int(rng.choice(np.flatnonzero(height < 6)))
            boards[i % 2] |= 1 << (7 * column + int(height[column]))
            height[column] += 1
        if won(boards[0]) or won(boards[1]):
            continue
        words = [(jnp.uint32(b & 0xFFFFFFFF), jnp.uint32(b >> 32)) for b in boards]
        counted, wins = four.evaluate_moves(*words, jnp.asarray(height, jnp.int32))
        for column in np.flatnonzero(height < 6):
            moved = boards[1] | 1 << (7 * int(column) + int(height[column]))
            assert bool(wins[column]) == bool(won(moved))
            if not won(moved):
                assert int(counted[column]) == -count(boards[0], moved, 3)
    assert bits(words[0]) == boards[0]


def test_freeway_pays_for_lanes_and_stuns():
    env = Freeway(level=0, frameskip=1, random_start=False)
    start = begun(env)
    far = jnp.full((10, 3), 900.0)
    _, timestep = env.advance(replace(start, x=far, y=jnp.float32(617)), jnp.int32(1), jnp.zeros(10, jnp.int32))
    assert float(timestep.reward) == pytest.approx(0.1)
    across = replace(start, x=far, y=jnp.float32(42), lane=jnp.int32(9))
    state, timestep = env.advance(across, jnp.int32(1), jnp.zeros(10, jnp.int32))
    assert (float(timestep.reward), int(state.score), float(state.y)) == (pytest.approx(1.1), 1, 688)
    hit = replace(start, x=far.at[2, 0].set(304.0), y=jnp.float32(520), lane=jnp.int32(2))
    state, timestep = env.advance(hit, jnp.int32(0), jnp.zeros(10, jnp.int32))
    assert (int(state.stunned), float(timestep.reward)) == (40, pytest.approx(-0.01))
    state, _ = env.advance(state, jnp.int32(1), jnp.zeros(10, jnp.int32))
    assert float(state.y) == pytest.approx(522.4)


def test_space_invaders_by_hand():
    env = SpaceInvaders(frameskip=1)
    start, calm = begun(env), jnp.ones((1, 2)) * 0.99
    shot = replace(start, shot=jnp.array([start.x + 1, start.y + 4 * 6 + 5]))
    state, timestep = env.advance(shot, jnp.int32(0), calm)
    assert (float(timestep.reward), int(state.alive.sum()), int(state.shot[1])) == (1, 54, -1)
    last = replace(shot, alive=jnp.zeros((5, 11), bool).at[4, 0].set(True))
    state, timestep = env.advance(last, jnp.int32(0), calm)
    assert (float(timestep.reward), int(state.alive.sum()), int(state.y), int(state.wave)) == (1, 55, 14, 1)
    bombed = replace(start, bombs=start.bombs.at[0].set(jnp.array([start.cannon, 77])))
    state, _ = env.advance(bombed, jnp.int32(0), calm)
    assert (int(state.lives), int(state.bombs[0, 1])) == (2, 84)
    assert env.advance(replace(bombed, lives=jnp.int32(1)), jnp.int32(0), calm)[1].terminated
    low = replace(start, y=jnp.int32(51), direction=jnp.int32(1), x=jnp.int32(20), move_countdown=jnp.int32(0))
    assert env.advance(low, jnp.int32(0), calm)[1].terminated
    state, _ = env.advance(start, jnp.int32(0), jnp.array([[0.0, 0.0]]))
    assert state.bombs[0].tolist() == [start.x + 2, start.y + 4 * 6 + 3]


def test_rocks_break_in_two_and_again():
    env = Asteroids(frameskip=1)
    start = begun(env)
    rocks = start.rocks.at[4].set(jnp.array([0.2, 0.2]))
    shots = start.shots.at[0].set(jnp.array([0.2, 0.2]))
    hit = replace(start, rocks=rocks, shots=shots, shot_frames=start.shot_frames.at[0].set(5))
    state, timestep = env.advance(hit, jnp.int32(0), jnp.zeros((4, 2)))
    assert float(timestep.reward) == 1
    assert state.rock_size.tolist() == [3, 0, 0, 0, 2, 0, 2, 0, 3, 0, 0, 0, 3, 0, 0, 0]
    assert int(state.shot_frames[0]) == 0
    again = replace(state, shots=state.shots.at[0].set(state.rocks[6]), shot_frames=state.shot_frames.at[0].set(5))
    again = replace(again, rocks=again.rocks.at[4].set(jnp.array([0.8, 0.8])))
    state, timestep = env.advance(again, jnp.int32(0), jnp.zeros((4, 2)))
    assert float(timestep.reward) == 2
    assert state.rock_size.tolist() == [3, 0, 0, 0, 2, 0, 1, 1, 3, 0, 0, 0, 3, 0, 0, 0]
    crash = replace(start, rocks=start.rocks.at[0].set(start.position), safe_frames=jnp.int32(0))
    state, timestep = env.advance(crash, jnp.int32(0), jnp.zeros((4, 2)))
    assert (int(state.lives), int(state.safe_frames), float(timestep.reward)) == (2, 40, 0)


def test_the_grid_draws_its_target_and_over_it_the_agent(tmp_path):
    env = Grid()
    state, _ = env.reset(jax.random.key(0), None)
    picture = np.asarray(env.render(state))
    marked = np.argwhere((picture != picture[0, 0]).any(-1)).tolist()
    assert marked == sorted([[5, 5], (np.asarray(state.target) + 5).tolist()])
    there = np.asarray(env.render(state.replace(position=state.target)))
    assert (there != there[0, 0]).any(-1).sum() == 1
    assert {path.suffix for path in render.save_episode(env, [state, state], tmp_path)} >= {".gif", ".png"}
