"""Breakout: a wall of bricks, a ball and a paddle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.envs.arcade import screen
from evorl.envs.arcade.bricks import (
    BALL,
    BRICK_HEIGHT,
    BRICK_TOP,
    BRICK_WIDTH,
    COLUMNS,
    HEIGHT,
    NONE,
    PADDLED,
    ROWS,
    TOP,
    WIDTH,
    BreakoutState,
    Hit,
    compute_overlap,
    find_hit,
    select_earlier_hit,
)  # fmt: skip
from evorl.errors import require_int
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

PADDLE, PADDLE_TOP, PADDLE_HEIGHT, PADDLE_SPEED = 62.0, 312.0, 8, 620 / 60
SLOW, FAST, FASTER = (
    256.0,
    448.0,
    64.0,
)  # ball speeds, initial and highest, and increment, in pixels per second
SERVE_ANGLE = np.pi / 3.25
WALL_POINTS = 432  # points of one wall of bricks; the wall comes back once
EXTRA_BALLS = 5  # balls after the first one
COLORS = (screen.RED, screen.ORANGE, screen.YELLOW, screen.GREEN, screen.CYAN, screen.BLUE)


@dataclass(frozen=True)
class Breakout:
    """Breakout: hit bricks with a ball and a paddle; the reward is 7, 4 or 1 for a brick, by its row.

    The game follows PufferLib's rules. The wall of 108 bricks comes back once. The episode terminates if both
    walls are gone, at a return of 864, or if the sixth ball is lost. The paddle halves in width if the ball
    hits the ceiling. The ball's speed increases with every fourth hit of the paddle, and a brick in the upper
    three rows sets it to the maximum; a new speed applies from the next hit of the paddle.

    The observation is a vector of fractions: the paddle's position (x, y), the ball's position and velocity,
    whether the ball is served, the score, the balls left and the paddle's width; then a flag for each brick
    that is gone.

    Args:
        frameskip: Number of frames per step, all with the same action.
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [55, 96, 3], instead of vectors.
    """

    frameskip: int = 4
    max_episode_steps: int = 10_000
    image: bool = False

    default_params = None
    fresh_reset = False
    action_space = Discrete(3)
    action_meanings = ("nothing", "left", "right")

    def __post_init__(self) -> None:
        require_int("frameskip", self.frameskip)

    @property
    def observation_space(self) -> Box:
        return screen.make_pixel_space(55, 96) if self.image else Box(-1.0, 1.1, (10 + ROWS * COLUMNS,))

    def chance(self, key: Key) -> Bool[Array, ""]:
        """Sample whether the next ball is served to the left, bool [].

        Args:
            key: Random key of the step.
        """
        return jax.random.bernoulli(key)

    def reset(self, key: Key, params: Any) -> tuple[BreakoutState, Array]:
        del key, params
        zero, half = jnp.float32(0), jnp.float32(PADDLE)
        state = BreakoutState(
            zero, half, zero, zero, zero, zero, half, jnp.int32(0), jnp.bool_(False), jnp.zeros(ROWS, jnp.uint32),
            jnp.int32(0), jnp.int32(EXTRA_BALLS), jnp.int32(0),
        )  # fmt: skip
        state = reset_round(state)
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: BreakoutState, action: Int[Array, ""], params: Any
    ) -> tuple[BreakoutState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: BreakoutState, action: Int[Array, ""], chance: Bool[Array, ""]
    ) -> tuple[BreakoutState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        move = (action == 2).astype(jnp.float32) - (action == 1)

        def step_frame(_: Any, state: BreakoutState) -> BreakoutState:
            return tree.select(is_over(state), state, advance_frame(state, move, chance))

        state = jax.lax.fori_loop(0, self.frameskip, step_frame, env_state)
        state, over = replace(state, steps=state.steps + 1), is_over(state)
        reward = (state.score - env_state.score).astype(jnp.float32)
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, over, late)

    def observe(self, env_state: BreakoutState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        if self.image:
            return self.render(env_state)
        s = env_state
        place = s.paddle / WIDTH, jnp.float32(PADDLE_TOP / HEIGHT), s.x / WIDTH, s.y / HEIGHT, s.vx / 512, s.vy / 512
        counts = s.served / 5, s.score / (2 * WALL_POINTS), s.balls / EXTRA_BALLS, s.paddle_width / PADDLE
        return jnp.concatenate([jnp.stack([*place, *counts]), self._unpack_gone(s).reshape(-1).astype(jnp.float32)])

    def render(self, env_state: BreakoutState) -> screen.Picture:
        """Render a state as a picture of 6 x 6 game units per pixel, uint8 [55, 96, 3].

        Args:
            env_state: State to render.
        """
        picture = screen.create_picture(55, 96)
        rows = ((np.arange(55) + 0.5) * 6 - BRICK_TOP) // BRICK_HEIGHT
        columns = ((np.arange(96) + 0.5) * 6 // BRICK_WIDTH).astype(int)
        gone = self._unpack_gone(env_state)
        for row, color in enumerate(COLORS):
            there = (rows == row)[:, None] & (gone[row][columns] == 0)[None]
            picture = screen.paint(picture, there, color)
        picture = screen.paint_box(picture, env_state.paddle / 6, 52, env_state.paddle_width / 6, 2, screen.CYAN)
        return screen.paint_box(picture, env_state.x / 6, env_state.y / 6, BALL / 6, BALL / 6, screen.WHITE)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 60 / self.frameskip

    def render_frames(self, states: Sequence[BreakoutState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [55, 96, 3].
        """
        return screen.render_screens(self, states)

    def _unpack_gone(self, state: BreakoutState) -> Array:
        return (state.gone[:, None] >> np.arange(COLUMNS, dtype=np.uint32)) & 1


def is_over(state: BreakoutState) -> Bool[Array, ""]:
    """Return whether all balls are lost, or all bricks of both walls are gone."""
    return (state.balls < 0) | (state.score == 2 * WALL_POINTS)


def reset_round(state: BreakoutState) -> BreakoutState:
    """Put the paddle in the middle and the ball, which is not served yet, above it."""
    zero, width, paddle = jnp.float32(0), jnp.float32(PADDLE), jnp.float32(WIDTH / 2 - PADDLE / 2)
    ball = {"x": paddle + 15, "y": jnp.float32(HEIGHT // 2 - 30), "vx": zero, "vy": zero, "speed": jnp.float32(SLOW)}
    return replace(state, paddle=paddle, paddle_width=width, hits=jnp.int32(0), served=jnp.bool_(False), **ball)


def advance_frame(state: BreakoutState, move: Float[Array, ""], left: Bool[Array, ""]) -> BreakoutState:
    """Return the state one frame later.

    A ball that is not served yet is served, and the paddle does not move in this frame.
    """
    vx = jnp.where(left, -1.0, 1.0) * jnp.float32(np.sin(SERVE_ANGLE) * SLOW / 60)
    vx, vy = jnp.where(state.served, state.vx, vx), jnp.where(state.served, state.vy, np.cos(SERVE_ANGLE) * SLOW / 60)
    paddle = state.paddle + jnp.where(state.served, move, 0) * PADDLE_SPEED
    paddle = jnp.where(paddle <= 0, 0, jnp.minimum(WIDTH - state.paddle_width, paddle))
    s = replace(keep_ball_inside(state), vx=vx, vy=vy, paddle=paddle, served=jnp.bool_(True))
    s = resolve_hit(s, find_hit(s))
    return tree.select(s.y >= PADDLE_TOP + PADDLE_HEIGHT, reset_round(replace(s, balls=s.balls - 1)), s)


def keep_ball_inside(state: BreakoutState) -> BreakoutState:
    """Put a ball back that has left the field by a rounding error."""
    back = FAST * 1.1 / 60
    x = jnp.where(state.x < 0, state.x + back, state.x)
    x = jnp.where(x > WIDTH, x - back, x)
    return replace(state, x=x, y=jnp.where(state.y < 0, state.y + back, state.y))


def resolve_hit(s: BreakoutState, hit: Hit) -> BreakoutState:
    """Return the state after the earlier of two collisions in a frame: `hit`, or the one with the paddle.

    If there is none, the ball moves on freely.
    """
    gap = PADDLE_TOP - (s.y + BALL)
    covered = compute_overlap(s, 0, gap / s.vy, s.paddle, s.paddle_width)
    hit = select_earlier_hit(
        hit, hit._replace(time=gap / s.vy, overlap=covered, target=jnp.int32(PADDLED)), gap <= s.vy
    )
    on_paddle, free, brick = hit.target == PADDLED, hit.target == NONE, hit.target >= 0
    angle = np.pi / 4 * (2 * (s.x + BALL / 2 - s.paddle) / s.paddle_width - 1)
    hits = s.hits + on_paddle
    faster = on_paddle & (hits % 4 == 0) & (s.speed < FAST)
    row, column = jnp.divmod(hit.target, COLUMNS)
    bit = jnp.uint32(1) << jnp.clip(column, 0, COLUMNS - 1).astype(jnp.uint32)
    gone = jnp.where(on_paddle & (s.score == WALL_POINTS), 0, s.gone)
    return replace(
        s,
        x=jnp.where(on_paddle, s.x, jnp.where(free, s.x + s.vx, hit.x)),
        y=jnp.where(on_paddle, s.y, jnp.where(free, s.y + s.vy, hit.y)),
        vx=jnp.where(on_paddle, jnp.sin(angle) * s.speed / 60, jnp.where(free, s.vx, hit.vx)),
        vy=jnp.where(on_paddle, -jnp.cos(angle) * s.speed / 60, jnp.where(free, s.vy, hit.vy)),
        paddle_width=jnp.where(hit.target == TOP, PADDLE / 2, s.paddle_width),
        hits=hits,
        speed=jnp.where(brick & (row < 3), FAST, s.speed + FASTER * faster),
        gone=gone | jnp.where(brick & (np.arange(ROWS) == row), bit, 0),
        score=s.score + jnp.where(brick, 7 - 3 * (row // 2), 0),
    )
