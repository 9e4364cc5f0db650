"""Pong against a paddle that follows the ball."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import tree
from evorl.envs.arcade import screen
from evorl.errors import require_int
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

WIDTH, HEIGHT, PADDLE, BALL = 500.0, 640.0, 70.0, 32.0
PADDLE_SPEED, SERVE, SPIN, FASTEST = 8.0, (10.0, 1.0), 3.0, 13.0
LOWEST, HIGHEST = -PADDLE / 2, HEIGHT - PADDLE / 2  # range of the lower end of a paddle
LEFT, RIGHT = 0, 1
OURS, BOTH = (False, True), (True, True)  # which of the paddles are agile: they spin the ball


@struct.dataclass
class PongState:
    paddles: Float[Array, " 2"]  # lower ends of the left and the right paddle
    x: Float[Array, ""]  # left end of the ball
    y: Float[Array, ""]  # lower end of the ball
    vx: Float[Array, ""]
    vy: Float[Array, ""]
    scores: Int[Array, " 2"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Pong:
    """Pong against a scripted opponent: the reward is 1 for a point, -1 for a lost point, and 0.1 for a hit.

    The agent has the right paddle, and a hit is one of its own. The opponent follows the ball. The game
    follows PufferLib's rules. A point ends the step, and the ball is then served to the agent, level, up or
    down at random. The episode terminates if one side has `points` points.

    The observation is a vector, scaled to about [0, 1], with the positions of both paddles, the position and
    velocity of the ball, and both scores.

    Args:
        frameskip: Number of frames per step, all with the same action.
        points: Number of points that wins the game.
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [80, 68, 3], instead of vectors.
    """

    frameskip: int = 8
    points: int = 21
    max_episode_steps: int = 3000
    image: bool = False

    default_params = None
    fresh_reset = False
    action_space = Discrete(3)
    action_meanings = ("nothing", "up", "down")

    def __post_init__(self) -> None:
        require_int("frameskip", self.frameskip)
        require_int("points", self.points)

    @property
    def observation_space(self) -> Box:
        return screen.make_pixel_space(80, 68) if self.image else Box(-0.1, 1.1, (8,))

    def chance(self, key: Key) -> Int[Array, ""]:
        """Sample the vertical direction of the next serve: -1 (down), 0 (level) or 1 (up), shape [].

        Args:
            key: Random key of the step.
        """
        return jax.random.randint(key, (), -1, 2)

    def reset(self, key: Key, params: Any) -> tuple[PongState, Array]:
        del params
        state = serve_ball(jnp.zeros(2, jnp.int32), jnp.int32(0), self.chance(key))
        return state, self.observe(state)

    def step(self, key: Key, env_state: PongState, action: Int[Array, ""], params: Any) -> tuple[PongState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: PongState, action: Int[Array, ""], chance: Int[Array, ""]
    ) -> tuple[PongState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        move = (action == 1).astype(jnp.float32) - (action == 2)

        def step_frame(_: Any, carry: tuple[PongState, Array, Array]) -> tuple[PongState, Array, Array]:
            state, reward, scored = carry
            ours = PADDLE_SPEED * move
            theirs = jnp.clip(state.y - (state.paddles[LEFT] + PADDLE / 2), -PADDLE_SPEED, PADDLE_SPEED)
            after, hit, points = advance_frame(
                state, jnp.stack([theirs, ours]), jnp.stack([jnp.float32(0), move]), OURS
            )
            earned = jnp.where(points[RIGHT], 1.0, jnp.where(points[LEFT], -1.0, jnp.where(hit[RIGHT], 0.1, reward)))
            state, reward = tree.select(scored, state, after), jnp.where(scored, reward, earned)
            return state, reward.astype(jnp.float32), scored | points.any()

        begin = env_state, jnp.float32(0), jnp.bool_(False)
        state, reward, scored = jax.lax.fori_loop(0, self.frameskip, step_frame, begin)
        over = (state.scores >= self.points).any()
        state = tree.select(scored, serve_ball(state.scores, state.steps, chance), state)
        state = replace(state, steps=state.steps + 1)
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, over, late)

    def observe(self, env_state: PongState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        if self.image:
            return self.render(env_state)
        paddles = (env_state.paddles - LOWEST) / (HIGHEST - LOWEST)
        speed = (env_state.vx + SERVE[0]) / (2 * SERVE[0]), (env_state.vy + FASTEST) / (2 * FASTEST)
        ball = jnp.stack([env_state.x / WIDTH, env_state.y / HEIGHT, *speed])
        return jnp.concatenate([paddles, ball, env_state.scores / self.points])

    def render(self, env_state: PongState) -> screen.Picture:
        """Render a state as a picture of 8 x 8 game units per pixel, uint8 [80, 68, 3].

        Args:
            env_state: State to render.
        """
        picture, (left, right) = screen.create_picture(80, 68), 80 - (env_state.paddles + PADDLE) / 8
        picture = screen.paint_box(picture, 0, left, 2.5, PADDLE / 8, screen.RED)
        picture = screen.paint_box(picture, 65.5, right, 2.5, PADDLE / 8, screen.CYAN)
        ball = BALL / 8
        return screen.paint_box(picture, 2.5 + env_state.x / 8, 80 - env_state.y / 8 - ball, ball, ball, screen.WHITE)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 60 / self.frameskip

    def render_frames(self, states: Sequence[PongState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [80, 68, 3].
        """
        return screen.render_screens(self, states)


def serve_ball(scores: Int[Array, "2"], steps: Int[Array, ""], chance: Int[Array, ""]) -> PongState:
    """Return the state at the start of a round, in which the ball moves to the right."""
    middle = jnp.full(2, HEIGHT / 2 - PADDLE / 2, jnp.float32)
    x, y = jnp.float32(WIDTH / 5), jnp.float32(HEIGHT / 2 - BALL / 2)
    return PongState(middle, x, y, jnp.float32(SERVE[0]), chance * jnp.float32(SERVE[1]), scores, steps)


def advance_frame(
    state: PongState, moves: Float[Array, "2"], spins: Float[Array, "2"], agile: tuple[bool, bool]
) -> tuple[PongState, Bool[Array, "2"], Bool[Array, "2"]]:
    """Return the state one frame later, and masks of the paddles that hit the ball and of the sides that scored.

    `moves` are the distances by which the paddles move. A paddle that is agile adds a multiple of its entry
    of `spins` to the vertical velocity of the ball, and the ball is put back to the edge on its side.
    """
    paddles = jnp.clip(state.paddles + moves, LOWEST, HIGHEST)
    x, y = state.x + state.vx, state.y + state.vy
    vy = jnp.where((y < 0) | (y + BALL > HEIGHT), -state.vy, state.vy)
    there = jnp.stack([x < 0, x + BALL > WIDTH])
    meets = (y + BALL > paddles) & (y < paddles + PADDLE)
    bounces = there & meets
    vx = jnp.where(bounces.any(), -state.vx, state.vx)
    for side in [side for side in (LEFT, RIGHT) if agile[side]]:
        spun = jnp.clip(vy + SPIN * spins[side], -FASTEST, FASTEST)
        spun = jnp.where(jnp.abs(spun) < 0.01, SPIN, spun)
        vy = jnp.where(bounces[side], spun, vy)
        x = jnp.where(there[side], jnp.clip(x, 0, WIDTH - BALL), x)
        y = jnp.where(there[side], jnp.clip(y, 0, HEIGHT - BALL), y)
    points = (there & ~meets)[::-1]
    scores = state.scores + points.astype(jnp.int32)
    return PongState(paddles, x, y, vx, vy, scores, state.steps), bounces, points
