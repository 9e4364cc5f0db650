"""Snake for several players on one field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int16

from evorl.envs.arcade import screen
from evorl.envs.arcade.snake import EMPTY, FOOD, MOVES, WALL, Snake, find_free_cell, mask_cell, set_cell
from evorl.errors import require, require_int
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask
from evorl.types import Key, MemberEnds, TimeStep

COLORS = screen.CYAN, screen.YELLOW, screen.PURPLE, screen.GREEN, screen.ORANGE, screen.BLUE


@struct.dataclass
class SnakesState:
    bodies: Int16[Array, "snakes rows columns"]  # number of steps for which a cell remains a snake's
    food: Bool[Array, "rows columns"]
    heads: Int[Array, "snakes 2"]  # row and column
    neck_direction: Int[Array, "snakes 2"]  # from a head to the next cell of the body; (0, 0) if there is none
    lengths: Int[Array, " snakes"]
    alive: Bool[Array, " snakes"]
    pending_food: Int[Array, ""]  # food that has been eaten and not replaced yet
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Snakes:
    """Several snakes on one field, members of the group snake, with the rules of the arcade game Snake.

    The reward is 0.1 for food, which makes a snake longer, and -1 for running into a wall, itself or another
    snake. All snakes move at once. If heads meet on one cell, or two heads swap cells, all of these snakes
    die. A snake that has died is terminated as a member: it is removed from the field, observes zeros, and
    has one valid action. New food appears elsewhere, at most one per step. The episode terminates if all
    snakes have died.

    A snake observes a square of 2 * vision + 1 cells around its head, with a channel each for food, walls,
    itself and other snakes, uint8 [2 * vision + 1, 2 * vision + 1, 4].

    Args:
        num_snakes: Number of snakes.
        height: Number of rows.
        width: Number of columns.
        food: Number of cells with food.
        vision: Number of cells that a snake sees in each direction.
        max_episode_steps: Steps after which an episode is truncated.

    Raises:
        OptionError: If the field is smaller than 2 x 2, or snakes and food leave no cell free.
    """

    num_snakes: int = 4
    height: int = 16
    width: int = 16
    food: int = 8
    vision: int = 5
    max_episode_steps: int = 1000

    render_fps = 10.0
    default_params = None
    fresh_reset = False
    action_meanings = Snake.action_meanings

    def __post_init__(self) -> None:
        require_int("num_snakes", self.num_snakes)
        require(min(self.height, self.width) >= 2, "height", (self.height, self.width), "must be at least 2 x 2")
        room = self.height * self.width - self.num_snakes
        require(0 < self.food < room, "food", self.food, f"must be from 1 to {room - 1}, to leave a free cell")
        require_int("vision", self.vision)

    @property
    def observation_space(self) -> Dict:
        side = 2 * self.vision + 1
        return Dict(
            {"snake": Members(ObsWithActionMask(Box(0, 1, (side, side, 4), "uint8"), (len(MOVES),)), self.num_snakes)}
        )

    @property
    def action_space(self) -> Dict:
        return Dict({"snake": Members(Discrete(len(MOVES)), self.num_snakes)})

    @property
    def _snake_ids(self) -> Array:
        return jnp.arange(1, self.num_snakes + 1)

    def chance(self, key: Key) -> Float[Array, ""]:
        """Sample the uniform number that selects the free cell of the next food, shape [].

        Args:
            key: Random key of the step.
        """
        return jax.random.uniform(key)

    def reset(self, key: Key, params: Any) -> tuple[SnakesState, Any]:
        del params
        cells = jnp.full((self.height, self.width), EMPTY, jnp.int16)

        def take_cell(cells: Array, part: Array) -> tuple[Array, Array]:
            place = find_free_cell(cells, part)
            return set_cell(cells, place, 1), place

        parts = jax.random.uniform(key, (self.num_snakes + self.food,))
        _, places = jax.lax.scan(take_cell, cells, parts)
        heads, foods = places[: self.num_snakes], places[self.num_snakes :]
        everywhere = jax.vmap(lambda place: mask_cell(cells, place))
        n = self.num_snakes
        state = SnakesState(
            everywhere(heads).astype(jnp.int16), everywhere(foods).any(0), heads, jnp.zeros((n, 2), jnp.int32),
            jnp.ones(n, jnp.int32), jnp.ones(n, bool), jnp.int32(0), jnp.int32(0),
        )  # fmt: skip
        return state, self.observe(state)

    def step(self, key: Key, env_state: SnakesState, action: Any, params: Any) -> tuple[SnakesState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(self, env_state: SnakesState, action: Any, chance: Float[Array, ""]) -> tuple[SnakesState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Actions by group: {"snake": int [num_snakes]}.
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        s, everyone = env_state, np.arange(self.num_snakes)
        move = jnp.asarray(MOVES)[action["snake"]]
        move = jnp.where((move == s.neck_direction).all(1, keepdims=True), -move, move)
        heads = s.heads + move
        there = jax.vmap(mask_cell, (None, 0))(s.food, heads)
        outside = ((heads < 0) | (heads >= np.array([self.height, self.width]))).any(1)
        meets = (heads[:, None] == heads).all(-1) & s.alive & (everyone[:, None] != everyone)
        dies = s.alive & (outside | (there & (s.bodies > 0).any(0)).any((1, 2)) | meets.any(1))
        goes = s.alive & ~dies
        eats = goes & (there & s.food).any((1, 2))
        lengths = s.lengths + eats
        bodies = jnp.where((s.bodies > 0) & ~eats[:, None, None], s.bodies - 1, s.bodies)
        bodies = jnp.where(there, lengths[:, None, None].astype(jnp.int16), bodies)
        bodies = jnp.where(goes[:, None, None], bodies, jnp.int16(0))
        food = s.food & ~(there & eats[:, None, None]).any(0)
        missing = s.pending_food + eats.sum(dtype=jnp.int32)
        taken = food | (bodies > 0).any(0)
        new = mask_cell(food, find_free_cell(taken.astype(jnp.int16), chance)) & (missing > 0)
        going = goes[:, None]
        state = SnakesState(
            bodies, food | new, jnp.where(going, heads, s.heads),
            jnp.where(going & (lengths > 1)[:, None], -move, 0), jnp.where(goes, lengths, s.lengths), goes,
            missing - new.any().astype(jnp.int32), s.steps + 1,
        )  # fmt: skip
        reward = {"snake": jnp.where(dies, -1.0, jnp.where(eats, 0.1, 0.0)).astype(jnp.float32)}
        over = ~goes.any()
        late = ~over & (state.steps >= self.max_episode_steps)
        ends = MemberEnds({"snake": ~goes}, {"snake": jnp.zeros_like(goes)})
        return state, TimeStep(self.observe(state), reward, over, late, member_ends=ends)

    def observe(self, env_state: SnakesState) -> dict[str, Any]:
        """Return what each snake sees around its head, and its action mask.

        The result is {"snake": {"obs": ..., "legal": ...}}. "obs" is uint8 [snakes, 2 * vision + 1, 2 *
        vision + 1, 4] with the planes food, wall, own body and other bodies, and 0 for a dead snake. "legal"
        is bool [snakes, actions]; a dead snake has one valid action, the first.

        Args:
            env_state: State to observe.
        """
        s, side = env_state, 2 * self.vision + 1
        cells = jnp.where(s.food, FOOD, EMPTY) + jnp.tensordot(self._snake_ids, s.bodies > 0, 1)
        cells = jnp.pad(cells.astype(jnp.int8), self.vision, constant_values=WALL)

        def observe_snake(head: Array, name: Array, alive: Array) -> Array:
            near = jax.lax.dynamic_slice(cells, head, (side, side))
            return jnp.stack([near == FOOD, near == WALL, near == name, (near > 0) & (near != name)], -1) & alive

        seen = jax.vmap(observe_snake)(s.heads, self._snake_ids, s.alive).astype(jnp.uint8)
        legal = s.alive[:, None] | (np.arange(len(MOVES)) == 0)
        return {"snake": {"obs": seen, "legal": legal}}

    def render(self, env_state: SnakesState) -> screen.Picture:
        """Render a state with one pixel per cell, a border and white heads, uint8 [height + 2, width + 2, 3].

        Args:
            env_state: State to render.
        """
        walls = np.pad(np.zeros((self.height, self.width), bool), 1, constant_values=True)
        picture = screen.paint(screen.create_picture(*walls.shape), walls, screen.GRAY)
        picture = screen.paint(picture, jnp.pad(env_state.food, 1), screen.RED)
        for i in range(self.num_snakes):
            body = jnp.pad(env_state.bodies[i], 1)
            picture = screen.paint(picture, body > 0, COLORS[i % len(COLORS)])
            head = mask_cell(body, env_state.heads[i] + 1) & env_state.alive[i]
            picture = screen.paint(picture, head, screen.WHITE)
        return picture

    def render_frames(self, states: Sequence[SnakesState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [height + 2, width + 2, 3].
        """
        return screen.render_screens(self, states)
