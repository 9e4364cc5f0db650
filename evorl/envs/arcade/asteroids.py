"""Asteroids: a ship among rocks that break into smaller ones."""

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

BIG, PARTS = 4, 4  # big rocks of a wave, and the small ones that each of them can become
NUM_ROCKS = BIG * PARTS
RADII = np.array([0, 0.025, 0.05, 0.09], np.float32)  # by size, on a screen of 1 x 1
ROCK_POINTS = np.array([0, 3, 2, 1], np.float32)
SHIP, TURN, THRUST, DRAG = 0.02, np.pi / 16, 0.0012, 0.99
SHOTS, SHOT_SPEED, SHOT_FRAMES, PAUSE = 4, 0.03, 16, 4
LIVES, SAFE, ROCK_SPEED, SPREAD = (
    3,
    40,
    0.006,
    0.6,
)  # SAFE in frames; SPREAD is the angle between the courses of a half and the whole rock
SCREEN_SIZE = 84


@struct.dataclass
class AsteroidsState:
    position: Float[Array, " 2"]  # (x, y), in a unit square whose edges wrap around
    velocity: Float[Array, " 2"]
    heading: Float[Array, ""]
    rocks: Float[Array, "16 2"]  # positions
    rock_velocity: Float[Array, "16 2"]
    rock_size: Int[Array, " 16"]  # 3 for a big one and 0 for none
    shots: Float[Array, "4 2"]  # positions
    shot_velocity: Float[Array, "4 2"]
    shot_frames: Int[Array, " 4"]  # remaining frames of flight
    shot_cooldown: Int[Array, ""]  # frames until the next shot
    safe_frames: Int[Array, ""]  # remaining frames in which nothing harms the ship
    lives: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Asteroids:
    """Asteroids: shoot rocks, and avoid collisions; the reward is 1, 2 or 3 for a big, medium or small rock.

    The rules follow Atari's game of 1979, without saucers. The ship turns, thrusts and drifts, its shots fly
    for 16 frames, and all edges wrap around. A big rock breaks into two medium ones, and a medium one into
    two small ones. If no rock is left, four big ones appear. The ship has three lives; after a collision, it
    reappears in the middle and is safe for 40 frames. The episode terminates if no life is left.

    The observation is a vector with the ship's position, velocity, heading, shot cooldown, remaining safe
    time and lives; the position relative to the ship, velocity and size of each rock, in a fixed order; and
    the relative position, velocity and remaining flight of each shot.

    Args:
        frameskip: Number of frames per step, all with the same action.
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [84, 84, 3], instead of vectors.
    """

    frameskip: int = 2
    max_episode_steps: int = 3000
    image: bool = False

    default_params = None
    fresh_reset = True
    action_space = Discrete(5)
    action_meanings = ("nothing", "left", "right", "up", "fire")

    def __post_init__(self) -> None:
        require_int("frameskip", self.frameskip)

    @property
    def observation_space(self) -> Box:
        return (
            screen.make_pixel_space(SCREEN_SIZE, SCREEN_SIZE)
            if self.image
            else Box(-4.0, 4.0, (9 + 5 * NUM_ROCKS + 5 * SHOTS,))
        )

    def chance(self, key: Key) -> Float[Array, "4 2"]:
        """Sample the position on an edge and the direction of each new big rock, uniform in [0, 1), shape [4, 2].

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key, (BIG, 2))

    def reset(self, key: Key, params: Any) -> tuple[AsteroidsState, Array]:
        del params
        shots, zero = jnp.zeros((SHOTS, 2)), jnp.int32(0)
        rocks, drift, size = create_rocks(self.chance(key))
        state = AsteroidsState(
            jnp.full(2, 0.5, jnp.float32), jnp.zeros(2), jnp.float32(np.pi / 2), rocks, drift, size, shots, shots,
            jnp.zeros(SHOTS, jnp.int32), zero, jnp.int32(SAFE), jnp.int32(LIVES), zero,
        )  # fmt: skip
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: AsteroidsState, action: Int[Array, ""], params: Any
    ) -> tuple[AsteroidsState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: AsteroidsState, action: Int[Array, ""], chance: Float[Array, "4 2"]
    ) -> tuple[AsteroidsState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """

        def step_frame(_: Any, carry: tuple[AsteroidsState, Array]) -> tuple[AsteroidsState, Array]:
            state, reward = carry
            after, earned = advance_frame(state, action)
            over = state.lives <= 0
            return tree.select(over, state, after), reward + jnp.where(over, 0, earned)

        state, reward = jax.lax.fori_loop(0, self.frameskip, step_frame, (env_state, jnp.float32(0)))
        rocks, drift, size = create_rocks(chance)
        fresh = replace(state, rocks=rocks, rock_velocity=drift, rock_size=size)
        state = replace(tree.select((state.rock_size > 0).any(), state, fresh), steps=state.steps + 1)
        over = state.lives <= 0
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, over, late)

    def observe(self, env_state: AsteroidsState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        s = env_state
        if self.image:
            return self.render(s)
        counts = jnp.stack([s.shot_cooldown / PAUSE, s.safe_frames / SAFE, s.lives / LIVES])
        ship = [s.position, s.velocity * 20, to_unit_vector(s.heading), counts]
        there, flies = (s.rock_size > 0)[:, None], (s.shot_frames > 0)[:, None]
        rocks = (
            jnp.concatenate(
                [wrap_offset(s.rocks, s.position) * 2, s.rock_velocity * 100, (s.rock_size / 3)[:, None]], 1
            )
            * there
        )
        shots = (
            jnp.concatenate(
                [wrap_offset(s.shots, s.position) * 2, s.shot_velocity * 20, (s.shot_frames / SHOT_FRAMES)[:, None]], 1
            )
            * flies
        )
        return jnp.concatenate([*ship, rocks.reshape(-1), shots.reshape(-1)])

    def render(self, env_state: AsteroidsState) -> screen.Picture:
        """Render a state as a picture, uint8 [84, 84, 3].

        Args:
            env_state: State to render.
        """
        s = env_state
        y, x = (np.mgrid[:SCREEN_SIZE, :SCREEN_SIZE][::, ::-1] + 0.5) / SCREEN_SIZE
        pixels = jnp.asarray(np.stack([x, y], -1), jnp.float32)

        def rasterize_discs(places: Array, radii: Array) -> Array:
            away = wrap_offset(pixels[:, :, None], places)
            return ((away**2).sum(-1) < radii**2).any(-1)

        picture = screen.paint(
            screen.create_picture(SCREEN_SIZE, SCREEN_SIZE),
            rasterize_discs(s.rocks, jnp.array(RADII)[s.rock_size]),
            screen.GRAY,
        )
        picture = screen.paint(picture, rasterize_discs(s.shots, jnp.where(s.shot_frames > 0, 0.012, 0)), screen.YELLOW)
        nose = (s.position + SHIP * to_unit_vector(s.heading))[None]
        blinks = (s.safe_frames // 2) % 2 == 0
        picture = screen.paint(picture, rasterize_discs(s.position[None], jnp.float32([SHIP])) & blinks, screen.CYAN)
        picture = screen.paint(picture, rasterize_discs(nose, jnp.float32([0.012])) & blinks, screen.WHITE)
        return screen.paint_box(picture, 0, SCREEN_SIZE - 2, 5 * s.lives, 1, screen.GREEN)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 30 / self.frameskip

    def render_frames(self, states: Sequence[AsteroidsState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [84, 84, 3].
        """
        return screen.render_screens(self, states)


def to_unit_vector(angle: Any) -> Array:
    """Return the vector of length 1 at an angle, [..., 2]."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def wrap_offset(a: Any, b: Any) -> Array:
    """Return the shortest offset from b to a, across the edges if that is shorter."""
    return (a - b + 0.5) % 1 - 0.5


def create_rocks(chance: Float[Array, "4 2"]) -> tuple[Array, Array, Array]:
    """Create four big rocks at the edges; return the positions, velocities and sizes of all 16 rows of the table.

    A big rock owns four rows, for the rocks that it may break into, and is in the first of them.
    """
    along = chance[:, 0]
    edge = jnp.where(
        (np.arange(BIG) % 2 == 0)[:, None], jnp.stack([along, 0 * along], 1), jnp.stack([0 * along, along], 1)
    )
    drift = ROCK_SPEED / 2 * to_unit_vector(2 * np.pi * chance[:, 1])
    size = jnp.where(np.arange(NUM_ROCKS) % PARTS == 0, 3, 0).astype(jnp.int32)
    return jnp.repeat(edge, PARTS, 0), jnp.repeat(drift, PARTS, 0), size


def advance_frame(s: AsteroidsState, action: Int[Array, ""]) -> tuple[AsteroidsState, Array]:
    """Return the state one frame later, and the reward."""
    heading = (s.heading + TURN * ((action == 1).astype(jnp.float32) - (action == 2))) % (2 * np.pi)
    ahead = to_unit_vector(heading)
    velocity = DRAG * s.velocity + THRUST * (action == 3) * ahead
    place = (s.position + velocity) % 1
    free = s.shot_frames <= 0
    fires = free & (jnp.cumsum(free) == 1) & (action == 4) & (s.shot_cooldown <= 0)
    aim = jnp.where(fires[:, None], SHOT_SPEED * ahead + velocity, s.shot_velocity)
    shots = (jnp.where(fires[:, None], place + SHIP * ahead, s.shots) + aim) % 1
    left = jnp.where(fires, SHOT_FRAMES, jnp.maximum(s.shot_frames - 1, 0))
    pause = jnp.where(fires.any(), PAUSE, jnp.maximum(s.shot_cooldown - 1, 0))
    s = replace(s, heading=heading, velocity=velocity, position=place, shots=shots)
    s = replace(s, shot_velocity=aim, shot_frames=left, shot_cooldown=pause)
    s = replace(s, rocks=(s.rocks + s.rock_velocity) % 1, safe_frames=jnp.maximum(s.safe_frames - 1, 0))
    hits = find_touched_rocks(s, s.shots, 0.0) & (s.shot_frames > 0)[:, None]
    crash = find_touched_rocks(s, s.position[None], SHIP)[0] & (s.safe_frames == 0)
    struck = hits.any(0) | crash
    earned = (hits.any(0) * jnp.array(ROCK_POINTS)[s.rock_size]).sum()
    lost = crash.any()
    back = replace(
        s,
        position=jnp.full(2, 0.5, jnp.float32),
        velocity=jnp.zeros(2),
        safe_frames=jnp.int32(SAFE),
        lives=s.lives - 1,
    )
    s = tree.select(lost, back, s)
    return break_rocks(replace(s, shot_frames=jnp.where(hits.any(1), 0, s.shot_frames)), struck), earned


def find_touched_rocks(s: AsteroidsState, places: Float[Array, "n 2"], radius: float) -> Bool[Array, "n 16"]:
    """Return a mask of the rocks that contain each place, or are within `radius` of it."""
    away = (wrap_offset(places[:, None], s.rocks) ** 2).sum(-1)
    return (s.rock_size > 0) & (away < (jnp.array(RADII)[s.rock_size] + radius) ** 2)


def break_rocks(s: AsteroidsState, struck: Bool[Array, "16"]) -> AsteroidsState:
    """Break the rocks that were struck into halves; small ones disappear.

    One half stays in its row of the table. The other half moves two rows on if the rock was big, and one row
    on if it was a medium one.
    """
    size = jnp.where(struck, s.rock_size - 1, s.rock_size)
    rocks, drift, angle = s.rocks, s.rock_velocity, SPREAD * jnp.array([-1.0, 1.0])
    turns = [jnp.stack([jnp.stack([jnp.cos(a), -jnp.sin(a)]), jnp.stack([jnp.sin(a), jnp.cos(a)])]) for a in angle]
    half, other = (1.4 * drift @ turn.T for turn in turns)
    drift = jnp.where((struck & (size > 0))[:, None], half, drift)
    for of, step in ((2, 2), (1, 1)):
        comes = jnp.roll(struck & (size == of) & (s.rock_size == of + 1), step)
        rocks = jnp.where(comes[:, None], jnp.roll(s.rocks, step, 0), rocks)
        drift = jnp.where(comes[:, None], jnp.roll(other, step, 0), drift)
        size = jnp.where(comes, of, size)
    return replace(s, rocks=rocks, rock_velocity=drift, rock_size=size)
