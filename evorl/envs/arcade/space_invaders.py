"""Space Invaders: aliens that march down on a cannon."""

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

SCREEN_SIZE = 84  # in pixels
ROWS, COLUMNS, PITCH, ALIEN, TALL = 5, 11, 6, 4, 3  # an alien is 4 x 3, and there is one every 6 pixels
ALIEN_POINTS = np.array([3, 2, 2, 1, 1], np.float32)  # by row, from the top
CANNON, GROUND, LIVES = 6, 78, 3  # width and top of the cannon, in pixels; number of lives
TOP, LOWER, FALL = 10, 4, 3  # in pixels: initial top of the aliens, drop per wave, and drop at an edge
SHOT, BOMB, BOMBS = 4, 2, 3  # speeds in pixels per frame, and number of bombs at once
BOMB_PROBABILITY = 0.03  # probability that a bomb falls in a frame
COLORS = (screen.RED, screen.ORANGE, screen.YELLOW, screen.GREEN, screen.CYAN)


@struct.dataclass
class SpaceInvadersState:
    alive: Bool[Array, "5 11"]
    x: Int[Array, ""]  # position of the upper left alien, which may be dead
    y: Int[Array, ""]
    direction: Int[Array, ""]  # 1 to the right, -1 to the left
    move_countdown: Int[Array, ""]  # frames until the next move
    cannon: Int[Array, ""]  # its left end
    shot: Int[Array, " 2"]  # (x, y); y is negative if there is no shot
    bombs: Int[Array, "3 2"]  # (x, y); y is below the screen if there is no bomb
    lives: Int[Array, ""]
    wave: Int[Array, ""]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class SpaceInvaders:
    """Space Invaders: shoot aliens, with reward 1, 2 or 3 for each, by its row.

    The rules follow Taito's game of 1978. A wave of 55 aliens marches sideways by one pixel at a time, faster
    the fewer they are. At an edge, they turn around and come down. There is one shot at a time, and at most
    three bombs. Each wave starts lower than the one before, up to the fifth. The cannon has three lives. The
    episode terminates if no life is left, or if an alien reaches the height of the cannon.

    The observation is a vector: a flag for each alien; the position and direction of the aliens; the cannon's
    position, the lives, and the positions of the shot and the bombs. Positions are fractions of the screen.

    Args:
        frameskip: Number of frames per step, all with the same action.
        max_episode_steps: Steps after which an episode is truncated.
        image: Whether observations are pictures, uint8 [84, 84, 3], instead of vectors.
    """

    frameskip: int = 2
    max_episode_steps: int = 5000
    image: bool = False

    default_params = None
    fresh_reset = False
    action_space = Discrete(4)
    action_meanings = ("nothing", "left", "right", "fire")

    def __post_init__(self) -> None:
        require_int("frameskip", self.frameskip)

    @property
    def observation_space(self) -> Box:
        return (
            screen.make_pixel_space(SCREEN_SIZE, SCREEN_SIZE)
            if self.image
            else Box(-1.0, 2.0, (ROWS * COLUMNS + 7 + 2 * BOMBS,))
        )

    def chance(self, key: Key) -> Float[Array, "frames 2"]:
        """Sample for each frame whether a bomb falls, and from which column of aliens, uniform numbers [frames, 2].

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key, (self.frameskip, 2))

    def reset(self, key: Key, params: Any) -> tuple[SpaceInvadersState, Array]:
        del key, params
        none, cannon = jnp.array([0, -1], jnp.int32), jnp.int32(SCREEN_SIZE // 2 - CANNON // 2)
        bombs = jnp.broadcast_to(jnp.array([0, SCREEN_SIZE], jnp.int32), (BOMBS, 2))
        lives, steps = jnp.int32(LIVES), jnp.int32(0)
        own = {"cannon": cannon, "shot": none, "bombs": bombs, "lives": lives, "steps": steps}
        state = SpaceInvadersState(**create_aliens(jnp.int32(0)), **own)
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: SpaceInvadersState, action: Int[Array, ""], params: Any
    ) -> tuple[SpaceInvadersState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(
        self, env_state: SpaceInvadersState, action: Int[Array, ""], chance: Float[Array, "frames 2"]
    ) -> tuple[SpaceInvadersState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Action, [].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """

        def step_frame(
            carry: tuple[SpaceInvadersState, Array], chance: Array
        ) -> tuple[tuple[SpaceInvadersState, Array], None]:
            state, reward = carry
            after, earned = advance_frame(state, action, chance)
            return (tree.select(is_over(state), state, after), reward + jnp.where(is_over(state), 0, earned)), None

        (state, reward), _ = jax.lax.scan(step_frame, (env_state, jnp.float32(0)), chance)
        state, over = replace(state, steps=state.steps + 1), is_over(state)
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), reward, over, late)

    def observe(self, env_state: SpaceInvadersState) -> Array:
        """Return the observation of a state.

        Args:
            env_state: State to observe.
        """
        s = env_state
        if self.image:
            return self.render(s)
        numbers = s.x / SCREEN_SIZE, s.y / SCREEN_SIZE, s.direction, s.cannon / SCREEN_SIZE, s.lives / LIVES
        parts = (
            s.alive.reshape(-1),
            jnp.stack([jnp.float32(x) for x in numbers]),
            s.shot / SCREEN_SIZE,
            s.bombs.reshape(-1) / SCREEN_SIZE,
        )
        return jnp.concatenate([part.astype(jnp.float32) for part in parts])

    def render(self, env_state: SpaceInvadersState) -> screen.Picture:
        """Render a state as a picture, uint8 [84, 84, 3].

        Args:
            env_state: State to render.
        """
        s = env_state
        picture = screen.create_picture(SCREEN_SIZE, SCREEN_SIZE)
        row, in_row = jnp.divmod(np.arange(SCREEN_SIZE) - s.y, PITCH)
        column, in_column = jnp.divmod(np.arange(SCREEN_SIZE) - s.x, PITCH)
        of_row = (row[:, None] == np.arange(ROWS)) & (in_row < TALL)[:, None]
        of_column = (column[:, None] == np.arange(COLUMNS)) & (in_column < ALIEN)[:, None]
        for i, color in enumerate(COLORS):
            there = (of_column & s.alive[i]).any(1)
            picture = screen.paint(picture, of_row[:, i][:, None] & there[None], color)
        picture = screen.paint_box(picture, s.cannon, GROUND, CANNON, 3, screen.WHITE)
        picture = screen.paint_box(picture, s.shot[0], s.shot[1], 1, 3, screen.WHITE)
        for i in range(BOMBS):
            picture = screen.paint_box(picture, s.bombs[i, 0], s.bombs[i, 1], 1, 2, screen.PURPLE)
        return screen.paint_box(picture, 0, SCREEN_SIZE - 2, 5 * s.lives, 1, screen.GREEN)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 30 / self.frameskip

    def render_frames(self, states: Sequence[SpaceInvadersState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [84, 84, 3].
        """
        return screen.render_screens(self, states)


def is_over(s: SpaceInvadersState) -> Bool[Array, ""]:
    """Return whether no life is left, or an alien has reached the height of the cannon."""
    rows = s.alive.any(1)
    return (s.lives <= 0) | (rows & (s.y + PITCH * np.arange(ROWS) + TALL > GROUND)).any()


def create_aliens(number: Int[Array, ""]) -> dict[str, Any]:
    """Return the fields of the state that describe the aliens at the start of a wave."""
    y = TOP + LOWER * jnp.minimum(number, 4)
    alive = jnp.ones((ROWS, COLUMNS), bool)
    x, direction, countdown = jnp.int32(8), jnp.int32(1), jnp.int32(8)
    return {"alive": alive, "x": x, "y": y, "direction": direction, "move_countdown": countdown, "wave": number}


def advance_frame(
    s: SpaceInvadersState, action: Int[Array, ""], chance: Float[Array, "2"]
) -> tuple[SpaceInvadersState, Array]:
    """Return the state one frame later, and the reward.

    First the cannon and its shot move, then the aliens, then the bombs; a new wave starts if no alien is
    left.
    """
    cannon = jnp.clip(s.cannon + (action == 2) - (action == 1), 0, SCREEN_SIZE - CANNON)
    fires = (action == 3) & (s.shot[1] < 0)
    shot = jnp.where(fires, jnp.stack([cannon + CANNON // 2, jnp.int32(GROUND)]), s.shot) - jnp.array([0, SHOT])
    hit = find_hit_alien(s, shot)
    earned = (hit.any(1) * ALIEN_POINTS).sum()
    alive = s.alive & ~hit
    shot = jnp.where(hit.any() | (shot[1] < 0), jnp.array([0, -1]), shot)
    s = move_aliens(replace(s, cannon=cannon, shot=shot, alive=alive))
    bombs, on_cannon = move_bombs(s, chance)
    s = replace(s, bombs=bombs, lives=s.lives - on_cannon.any())
    return tree.select(alive.any(), s, replace(s, **create_aliens(s.wave + 1))), earned


def find_hit_alien(s: SpaceInvadersState, shot: Int[Array, "2"]) -> Bool[Array, "5 11"]:
    """Return a mask of the alien that the shot hits in this frame; of two above each other, it is the lower one."""
    row, in_row = jnp.divmod(shot[1] + np.arange(SHOT) - s.y, PITCH)  # rows that it crosses in this frame, downwards
    column, in_column = jnp.divmod(shot[0] - s.x, PITCH)
    meets = (row[:, None] == np.arange(ROWS)) & (in_row < TALL)[:, None]
    there = (np.arange(COLUMNS) == column) & (in_column < ALIEN) & (shot[1] > -SHOT)
    hit = meets.any(0)[:, None] & there & s.alive
    lowest = jnp.where(hit.any(1), np.arange(ROWS), -1).max()
    return hit & (np.arange(ROWS) == lowest)[:, None]


def move_aliens(s: SpaceInvadersState) -> SpaceInvadersState:
    """Move the aliens by one frame; n aliens move by one pixel every 1 + n // 7 frames."""
    columns = s.alive.any(0)
    left = s.x + PITCH * jnp.where(columns, np.arange(COLUMNS), COLUMNS).min()
    right = s.x + PITCH * jnp.where(columns, np.arange(COLUMNS), -1).max() + ALIEN
    moves = s.move_countdown <= 0
    edge = jnp.where(s.direction > 0, right >= SCREEN_SIZE, left <= 0)
    turns, goes = moves & edge, moves & ~edge
    wait = jnp.where(moves, s.alive.sum(dtype=jnp.int32) // 7, s.move_countdown - 1)
    way = jnp.where(turns, -s.direction, s.direction)
    return replace(
        s,
        x=s.x + jnp.where(goes, s.direction, 0),
        y=s.y + jnp.where(turns, FALL, 0),
        direction=way,
        move_countdown=wait,
    )


def move_bombs(s: SpaceInvadersState, chance: Float[Array, "2"]) -> tuple[Int[Array, "3 2"], Bool[Array, "3"]]:
    """Move the bombs by one frame, drop a new one at random; return them and a mask of those that hit the cannon.

    Bombs that hit the cannon or leave the screen are removed.
    """
    columns = s.alive.any(0)
    which = jnp.floor(chance[1] * columns.sum()).astype(jnp.int32)
    column = (jnp.cumsum(columns) <= which).sum(dtype=jnp.int32)
    lowest = jnp.where(s.alive & (np.arange(COLUMNS) == column), np.arange(ROWS)[:, None], 0).max()
    start = jnp.stack([s.x + PITCH * column + ALIEN // 2, s.y + PITCH * lowest + TALL])
    free = s.bombs[:, 1] >= SCREEN_SIZE
    drops = free & (jnp.cumsum(free) == 1) & (chance[0] < BOMB_PROBABILITY) & columns.any()
    bombs = jnp.where(drops[:, None], start, s.bombs + jnp.array([0, BOMB]) * ~free[:, None])
    x, y = bombs.T
    hits = (y >= GROUND) & (y < SCREEN_SIZE) & (x >= s.cannon) & (x < s.cannon + CANNON)
    return jnp.where((hits | (y >= SCREEN_SIZE))[:, None], jnp.array([0, SCREEN_SIZE]), bombs), hits
