"""Build PufferLib's games as C libraries, and map their states, draws and observations to evorl's."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evorl.envs.arcade import Breakout, CartPole, ConnectFour, Freeway, Pong, Snake, Tetris, snake
from evorl.envs.arcade.breakout import BreakoutState
from evorl.envs.arcade.connect_four import ConnectFourState
from evorl.envs.arcade.freeway import FreewayState
from evorl.envs.arcade.pong import PongState
from evorl.envs.arcade.tetris import TetrisState

STEPS = 2000
SOURCE = """
#include <stdlib.h>
#include <string.h>
static int drawn[256], draws;
static int logged(int number) { if (draws < 256) drawn[draws++] = number; return number; }
static unsigned long mixed = 88172645463325252UL;
static int next(void) { mixed ^= mixed << 13; mixed ^= mixed >> 7; mixed ^= mixed << 17; return mixed >> 33; }
#define rand() RAND
#include "HEADER"
#define EXPORT __attribute__((visibility("default")))
static GAME *games; static int count, agents = 1;
EXPORT void make(int n, int of_each) {
    count = n; agents = of_each; games = calloc(n, sizeof(GAME));
    for (int i = 0; i < n; i++) { GAME *g = &games[i]; SETUP; g->terminals = calloc(agents, 1); c_reset(g); }
}
EXPORT void start(void) { GAME *g = games; BEGUN; }
EXPORT void step(int action) { draws = 0; games->actions[0] = action; c_step(games); }
EXPORT void run(int steps) {
    for (int t = 0; t < steps; t++) for (int i = 0; i < count; i++) {
        for (int a = 0; a < agents; a++) games[i].actions[a] = next() % ACTIONS;
        c_step(&games[i]);
    }
}
EXPORT int look(double *out) {
    GAME *g = games; double *start = out; (void)g;
    *out++ = g->rewards[0]; *out++ = g->terminals[0];
    *out++ = draws; for (int i = 0; i < 16; i++) *out++ = drawn[i];
    for (int i = 0; i < SEEN; i++) *out++ = g->observations[i];
    FIELDS
    return out - start;
}
"""
UNSET = (
    "enemy;\n    for (int lane = 0; lane < NUM_LANES; lane++) {\n        int delta",
    "enemy = env->enemies;\n for (int lane = 0;lane < NUM_LANES; lane++) { int delta",
)  # Freeway reads through an uninitialized pointer; this sets it
HEAD = 19  # numbers of a look before the observation


@dataclass(frozen=True)
class Peer:
    """A game in C, and its mapping to evorl's game."""

    env: Any
    header: str
    game: str
    setup: str
    seen: int  # size of an observation
    fields: str
    state: Callable[[np.ndarray], Any]  # the fields -> evorl's state
    chance: Callable[[np.ndarray, Any, np.ndarray], Any]  # draws, state, fields after -> evorl's draw
    obs: Callable[[np.ndarray, Any], np.ndarray] = lambda seen, state: seen  # in evorl's layout
    draw: str = "logged(next())"
    dies: bool = False  # whether a reward of -1 ends an episode without a flag
    begun: str = ""  # additional C code at the start of an episode
    again: int = STEPS  # steps after which evorl restarts from C's state
    skilled: Callable[[np.ndarray], int] | None = None  # takes four of five actions, from the observation


def fields(*names: str) -> str:
    """Return C code that writes the named values of a game."""
    return " ".join(f"*out++ = {name};" for name in names)


def array(of_i: str, n: int) -> str:
    """Return C code that writes n values of a game."""
    return f"for (int i = 0; i < {n}; i++) *out++ = {of_i};"


def i32(x: Any) -> Any:
    return np.asarray(x, np.int32)


def u32(x: Any) -> Any:
    return np.asarray(x, np.uint32)


def flag(x: Any) -> Any:
    return np.asarray(x, bool)


def f32(x: Any) -> Any:
    return np.asarray(x, np.float32)


def named(names: str, numbers: np.ndarray, whole: str = "") -> dict[str, Any]:
    """Return the numbers by name; those in `whole` are integers."""
    pairs = zip(names.split(), numbers, strict=True)
    return {name: i32(x) if name in whole.split() else f32(x) for name, x in pairs}


def breakout_state(f: np.ndarray) -> BreakoutState:
    gone = (f[11:].reshape(6, 18).astype(np.uint32) << np.arange(18, dtype=np.uint32)).sum(1, dtype=np.uint32)
    numbers = named("paddle paddle_width x y vx vy speed hits score balls", np.delete(f[:11], 8), "hits score balls")
    return BreakoutState(**numbers, served=flag(f[8]), gone=gone, steps=i32(0))


def snake_state(f: np.ndarray) -> snake.SnakeState:
    tiles = f[3:].reshape(26, 26)
    values = [snake.FOOD, snake.WALL, snake.HEAD]
    cells: Any = np.select([tiles == 1, tiles == 3, tiles == 7], values, snake.EMPTY).astype(np.int8)
    return snake.SnakeState(cells, i32((cells == snake.EMPTY).sum(1)), i32(f[:2]), i32(f[:2]), i32(1), i32(0))


def snake_chance(draws: np.ndarray, before: snake.SnakeState, f: np.ndarray) -> Any:
    """Return the fraction of the free cells that precede the cell with new food."""
    new = np.argwhere((f[3:].reshape(26, 26) == 1) & (before.cells != snake.FOOD))
    if not len(new):
        return np.float32(0)
    row, column = new[0]
    free = before.cells == snake.EMPTY
    return np.float32((free[:row].sum() + free[row, :column].sum() + 0.5) / free.sum())


def tetris_state(f: np.ndarray) -> TetrisState:
    names, deck = "piece turn row column fall steps", f[9:12]
    rows = ((f[12:].reshape(20, 10) > 0).astype(np.uint32) << np.arange(10, dtype=np.uint32)).sum(1, dtype=np.uint32)
    queue, held = i32([deck[(int(f[8]) + i) % 3] for i in (1, 2)]), i32(f[5] if f[5] >= 0 else 7)
    numbers = named(names, f[[0, 1, 2, 3, 4, 7]], names)
    return TetrisState(**numbers, rows=rows, queue=queue, held=held, may_hold=flag(f[6]))


def tetris_obs(seen: np.ndarray, state: TetrisState) -> np.ndarray:
    """Correct C's observation: it writes the one-hot entries two places early, over the turn and the hold flag."""
    known = seen[204:232].copy()
    known[:2] = [state.piece == 0, state.piece == 1]
    return np.concatenate([seen[:204], [state.turn, state.may_hold], known])


def freeway_state(f: np.ndarray) -> FreewayState:
    numbers = named("y lane stunned score level", f[:5], "lane stunned score level")
    return FreewayState(**numbers, steps=i32(f[5] / 4), x=f32(f[6:36].reshape(10, 3)), pace=i32(f[36:66:3]))


def four_state(f: np.ndarray) -> ConnectFourState:
    return ConnectFourState(u32(f[[0, 2]]), u32(f[[1, 3]]))


# PufferLib's settings; `library` replaces the words in capitals
BALL = "paddle_x paddle_width ball_x ball_y ball_vx ball_vy ball_speed hits balls_fired score num_balls"
PONG = "paddle_yl paddle_yr ball_x ball_y ball_vx ball_vy score_l score_r"
PIECE = "cur_tetromino cur_tetromino_rot cur_tetromino_row cur_tetromino_col tick_fall hold_tetromino can_swap tick"
PLAYER = ("player_y", "best_lane_idx", "ticks_stunts_left", "score")
HALVES = ("player_pieces", "env_pieces")
GAMES: dict[str, Peer] = {
    "breakout": Peer(
        Breakout(), "breakout/breakout.h", "Breakout",
        "g->frameskip = 4; g->width = 576; g->height = 330; g->paddle_width = 62; g->paddle_height = 8;"
        "g->ball_width = g->ball_height = g->brick_width = 32; g->brick_height = 12; g->brick_rows = 6;"
        "g->brick_cols = 18; allocate(g)",
        118, fields(*(f"g->{name}" for name in BALL.split())) + array("g->brick_states[i]", 108), breakout_state,
        lambda draws, before, f: np.bool_(len(draws) > 0 and draws[0] % 2 == 0),
        skilled=lambda seen: 1 + (seen[2] * 576 + 16 > seen[0] * 576 + seen[9] * 31), again=50,
    ),
    "pong": Peer(
        Pong(), "pong/pong.h", "Pong",
        "g->frameskip = 8; g->width = 500; g->height = 640; g->paddle_width = 20; g->paddle_height = 70;"
        "g->ball_width = g->ball_height = 32; g->paddle_speed = 8; g->ball_initial_speed_x = 10;"
        "g->ball_initial_speed_y = 1; g->ball_speed_y_increment = 3; g->ball_max_speed_y = 13;"
        "g->max_score = 21; allocate(g)",
        8, fields(*(f"g->{name}" for name in PONG.split())),
        lambda f: PongState(
            f32(f[:2]), f32(f[2]), f32(f[3]), f32(f[4]), f32(f[5]), i32(f[6:8]), i32(0)
        ),
        lambda draws, before, f: i32(draws[0] % 2 - 1 if len(draws) else 0),
        lambda seen, state: np.concatenate([seen[:6], state.scores / 21]),
        skilled=lambda seen: 1 + (seen[3] * 640 + 16 < seen[1] * 640),
    ),
    "snake": Peer(
        Snake(), "snake/snake.h", "CSnake",
        "g->width = WIDE; g->height = HIGH; g->num_snakes = agents; g->vision = 5; g->food = FOODS;"
        "g->max_snake_length = 1024; g->reward_food = g->reward_corpse = 0.1f; g->reward_death = -1;"
        "g->leave_corpse_on_death = agents > 1; allocate_csnake(g)",
        121, fields("g->snake[2*g->snake_ptr[0]]", "g->snake[2*g->snake_ptr[0]+1]", "g->snake_lengths[0]")
        + array("g->grid[i]", 26 * 26), snake_state, snake_chance,
        lambda seen, state: np.stack([seen == 1, seen == 3, seen == 7], -1).reshape(11, 11, 3), dies=True,
    ),
    "tetris": Peer(
        Tetris(), "tetris/tetris.h", "Tetris",
        "g->n_rows = 20; g->n_cols = 10; g->deck_size = 3; allocate(g); g->grid = calloc(300, sizeof(int))",
        234, fields(*(f"g->{name}" for name in PIECE.split()), "g->cur_position_in_deck")
        + array("g->tetromino_deck[i]", 3) + array("g->grid[i]", 200), tetris_state,
        lambda draws, before, f: i32(draws[0] % 7 if len(draws) else 0), tetris_obs,
        begun="for (int i = 120; i < 200; i++) g->grid[i] = i % 10 != 5 && i % 10 != 6",
    ),
    "freeway": Peer(
        Freeway(level=1), "freeway/freeway.h", "Freeway",
        "g->frameskip = 4; g->width = 1216; g->height = 720; g->player_width = g->player_height = 64;"
        "g->car_width = 64; g->car_height = 40; g->lane_size = 64; g->level = LEVEL; g->use_dense_rewards = 1;"
        "g->env_randomization = 1; allocate(g)",
        34, fields(*(f"g->ai_player.{name}" for name in PLAYER), "g->level", "g->tick")
        + array("g->enemies[i].enemy_x", 30) + array("g->enemies[i].current_speed_idx", 30),
        freeway_state, lambda draws, before, f: np.zeros(10, np.int32),
    ),
    "connect_four": Peer(
        ConnectFour(), "connect4/connect4.h", "CConnect4", "allocate_cconnect4(g); init(g)",
        42,
        fields(*(f"(double)(g->{name} {part})" for name in HALVES for part in ("& 0xffffffff", ">> 32"))),
        four_state, lambda draws, before, f: f32((draws[0] % 16 + 0.5) / (draws[0] // 16) if len(draws) else 0),
        draw="(logged(next() % num_ties + 16 * num_ties) & 15)",
    ),
}  # fmt: skip


# only timed: its rules are those of Gymnasium
CARTPOLE = Peer(
    CartPole(), "cartpole/cartpole.h", "Cartpole", "allocate(g)", 4, "", lambda f: (), lambda draws, before, f: ()
)


def library(puffer: Path, peer: Peer, defined: dict[str, int]) -> ctypes.CDLL:
    """Compile a game to a library; drawing code is removed, so only the header of raylib is needed."""
    parts = {"HEADER": Path(peer.header).name, "GAME": peer.game, "SETUP": peer.setup, "FIELDS": peer.fields}
    parts |= {"ACTIONS": peer.env.action_space.n, "SEEN": peer.seen, "BEGUN": peer.begun, "RAND": peer.draw}
    source = SOURCE
    for name, text in (parts | defined).items():
        source = source.replace(name, str(text))
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "game.c"
        at.write_text(source, encoding="utf-8")
        header = puffer / "pufferlib/ocean" / peer.header
        (at.parent / header.name).write_text(header.read_text("utf-8").replace(*UNSET), encoding="utf-8")
        include = [f"-I{path}" for path in (header.parent, *puffer.glob("raylib*/include"))]
        slim = ["-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections", "-fwrapv", "-w"]
        made = at.with_suffix(".so")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *slim, *include, at, "-o", made, "-lm"], check=True)
        return ctypes.CDLL(str(made))
