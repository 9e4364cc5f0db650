"""Freeway: repeated crossings of ten lanes of traffic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.arcade import screen
from evorl.errors import require, require_int
from evorl.spaces import Box, Discrete
from evorl.types import Key, TimeStep

WIDTH, HEIGHT, LANE, LANES, CARS = 1216, 720, 64, 10, 3
PLAYER, CAR, TRUCK, CAR_HEIGHT = 64, 64, 128, 40
X, BOTTOM, ROAD = 304, 688, 680  # x of the player, its lowest position, and the lower edge of the road, in pixels
SPEED, STUNNED, SECONDS, RANDOM_EVERY = HEIGHT / 3.5 / 60, 40, 136, 360  # in pixels per frame, frames, seconds, frames
CAR_SPEEDS = (1.35 ** np.arange(6) / 13 * WIDTH / 60).astype(np.float32)
# by level; levels 4 to 7 are levels 0 to 3 with changing speeds
HUMAN_SCORES = (25, 20, 18, 20, 25, 18, 15, 18)  # of a human player
CAR_COUNTS = ("1111111111", "1223212322", "3313113131", "1111111111") * 2  # number of cars in each lane
TRUCKS = ("0000000000", "0000010000", "0000100000", "1111111111") * 2
INITIAL_PACE = ("0123443210", "0134554310", "0134554310", "5424554245") * 2
CAR_GAPS = ("0000000000", "0121404121", "2202002022", "0000000000") * 2  # between cars of a lane, in width / 10
COLORS = (screen.RED, screen.ORANGE, screen.YELLOW, screen.GREEN, screen.BLUE) * 2


def _parse_levels(levels: tuple[str, ...]) -> np.ndarray:
    return np.array([[int(lane) for lane in level] for level in levels], np.int32)


@struct.dataclass
class FreewayState:
    y: Float[Array, ""]
    lane: Int[Array, ""]  # number of lanes crossed since the start of this crossing
    stunned: Int[Array, ""]  # remaining frames
    score: Int[Array, ""]
    x: Float[Array, "10 3"]  # of the cars
    pace: Int[Array, " 10"]
    level: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Freeway:
    """Freeway: cross ten lanes of traffic as often as possible within 136 seconds.

    The reward is 0.1 for each new lane, 1 for the other side, and -0.01 for being hit by a car. Being hit
    stuns the player and pushes it back. The game follows PufferLib's rules. From level 4 on, the speeds of
    the lanes change at random.

    The observation is a vector with the player's height, the fraction of the lanes crossed, the score
    relative to a human's, whether the player is stunned, and the positions of the cars.

    Args:
        level: Level from 0 to 7; -1 samples one for each episode.
        frameskip: Number of frames per step, all with the same action.
        hard: Whether being hit puts the player back to the start, instead of stunning it.
        random_start: Whether the traffic starts at random positions.
        image: Whether observations are pictures, uint8 [45, 76, 3], instead of vectors.

    Raises:
        OptionError: If there is no such level.
    """

    level: int = -1
    frameskip: int = 4
    hard: bool = False
    random_start: bool = True
    image: bool = False

    default_params = None
    fresh_reset = True
    action_space = Discrete(3)
    action_meanings = ("nothing", "up", "down")

    def __post_init__(self) -> None:
        require(-1 <= self.level < len(HUMAN_SCORES), "level", self.level, "must be from 0 to 7, or -1 for any")
        require_int("frameskip", self.frameskip)

    @property
    def max_episode_steps(self) -> int:
        return -(-SECONDS * 60 // self.frameskip)

    @property
    def observation_space(self) -> Box:
        return screen.make_pixel_space(45, 76) if self.image else Box(-0.2, 3.0, (4 + LANES * CARS,))

    def chance(self, key: Key) -> Int[Array, "10"]:
        """Sample how the speed of each lane changes, -1 (slower), 0 or 1 (faster), shape [10].

        Args:
            key: Random key of the step.
        """
        return jax.random.randint(key, (LANES,), -1, 2)

    def reset(self, key: Key, params: Any) -> tuple[FreewayState, Array]:
        del params
        key_level, key_start = jax.random.split(key)
        drawn = jax.random.randint(key_level, (), 0, len(HUMAN_SCORES))
        level = drawn if self.level < 0 else jnp.int32(self.level)
        gaps = jnp.array(_parse_levels(CAR_GAPS))[level][:, None] * np.arange(CARS) * jnp.float32(WIDTH / 10)
        x = jnp.where(np.arange(LANES)[:, None] < LANES // 2, gaps, WIDTH - gaps)
        x += WIDTH * jax.random.uniform(key_start, (LANES, 1)) * self.random_start
        zero, pace = jnp.int32(0), jnp.array(_parse_levels(INITIAL_PACE))[level]
        state = FreewayState(jnp.float32(BOTTOM), zero, zero, zero, x, pace, level, zero)
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: FreewayState, action: Int[Array, ""], params: Any
    ) -> tuple[FreewayState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: FreewayState, action: Int[Array, ""], chance: Int[Array, "10"]
    ) -> tuple[FreewayState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        move = (action == 1).astype(jnp.float32) - (action == 2)
        there, width = self._find_cars(env_state)
        direction = np.where(np.arange(LANES) < LANES // 2, 1, -1)
        speed = (jnp.array(CAR_SPEEDS)[env_state.pace] * direction)[:, None]

        def step_frame(_: Any, carry: tuple[FreewayState, Array]) -> tuple[FreewayState, Array]:
            s, reward = carry
            s, earned = self._move_player(s, move, there, width)
            x = s.x + jnp.where(there, speed, 0)
            x = jnp.where(x > WIDTH + width / 2, x - WIDTH, jnp.where(x < -width / 2, x + WIDTH, x))
            return replace(s, x=x), reward + earned

        s, reward = jax.lax.fori_loop(0, self.frameskip, step_frame, (env_state, jnp.float32(0)))
        s = replace(s, steps=s.steps + 1)
        changes = ((s.steps * self.frameskip) % RANDOM_EVERY == 0) & (s.level >= 4)
        first = jnp.array(_parse_levels(INITIAL_PACE))[s.level]
        pace = jnp.clip(jnp.clip(s.pace, first - 2, first + 2) + chance, 0, len(CAR_SPEEDS) - 1)
        s = replace(s, pace=jnp.where(changes, pace, s.pace))
        return s, TimeStep(self.observe(s), reward, jnp.bool_(False), s.steps >= self.max_episode_steps)

    def _move_player(self, s: FreewayState, move: Array, there: Array, width: Array) -> tuple[FreewayState, Array]:
        """Return the state after the player's move in one frame, and the reward."""
        free = s.stunned == 0
        y = s.y + jnp.where(free, -move * SPEED, 0.0 if self.hard else 1.5 * LANE / STUNNED)
        y, stunned = jnp.clip(y, PLAYER / 2, BOTTOM), jnp.maximum(s.stunned - 1, 0)
        hit = (stunned == 0) & is_hit(y, s.x, there, width)
        stunned = jnp.where(hit, 0 if self.hard else STUNNED, stunned)
        y = jnp.where(hit, BOTTOM, y) if self.hard else y
        further = y <= ROAD - (s.lane + 1) * LANE
        lane = s.lane + further
        across = lane == LANES
        earned = further / LANES + across - 0.01 * hit
        after = replace(
            s,
            y=jnp.where(across, BOTTOM, y).astype(jnp.float32),
            lane=jnp.where(across, 0, lane),
            stunned=jnp.where(across, 0, stunned),
            score=s.score + across,
        )
        return after, earned.astype(jnp.float32)

    def observe(self, env_state: FreewayState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        s = env_state
        if self.image:
            return self.render(s)
        numbers = s.y / HEIGHT, s.lane / LANES, s.score / jnp.array(HUMAN_SCORES)[s.level], jnp.float32(s.stunned > 0)
        cars = jnp.where(self._find_cars(s)[0], s.x / WIDTH, 0)
        return jnp.concatenate([jnp.stack(numbers), cars.reshape(-1)])

    def render(self, env_state: FreewayState) -> screen.Picture:
        """Render a state as a picture of 16 x 16 game units per pixel, uint8 [45, 76, 3].

        Args:
            env_state: State to render.
        """
        there, width = self._find_cars(env_state)
        picture = screen.paint_box(screen.create_picture(45, 76), 0, 2.5, 76, 40, (40, 50, 50))
        columns = (np.arange(76) + 0.5) * 16
        covers = there[..., None] & (jnp.abs(columns - env_state.x[..., None]) < width[..., None] / 2)
        rows = (ROAD - (np.arange(45) + 0.5) * 16) / LANE
        for lane, color in enumerate(COLORS):
            inside = np.abs(rows - lane - 0.5) * LANE < CAR_HEIGHT / 2
            picture = screen.paint(picture, inside[:, None] & covers[lane].any(0)[None], color)
        return screen.paint_box(picture, X / 16 - 2, env_state.y / 16 - 2, 4, 4, screen.WHITE)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 60 / self.frameskip

    def render_frames(self, states: Sequence[FreewayState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [45, 76, 3].
        """
        return screen.render_screens(self, states)

    def _find_cars(self, s: FreewayState) -> tuple[Bool[Array, "10 3"], Array]:
        """Return a mask of the cars that exist, and the length of the cars in each lane, [10, 1]."""
        there = jnp.array(_parse_levels(CAR_COUNTS))[s.level][:, None] > np.arange(CARS)
        return there, jnp.where(jnp.array(_parse_levels(TRUCKS))[s.level] == 1, TRUCK, CAR)[:, None]


def is_hit(y: Array, x: Array, there: Array, width: Array) -> Bool[Array, ""]:
    """Return whether the player touches a car."""
    lanes = (ROAD - LANE * np.arange(LANES) - LANE // 2)[:, None]
    aside = jnp.abs(x - X) < (width + PLAYER) / 2
    return (there & aside & (jnp.abs(lanes - y) < (CAR_HEIGHT + PLAYER) / 2)).any()
