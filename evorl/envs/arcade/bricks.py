"""Collisions of Breakout's ball with bricks and walls."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl import tree

WIDTH, HEIGHT, BALL = 576, 330, 32
ROWS, COLUMNS, BRICK_WIDTH, BRICK_HEIGHT, BRICK_TOP = 6, 18, 32, 12, 50
NONE, SIDE, TOP, PADDLED = -1, -2, -3, -4  # targets of a collision other than the number of a brick


@struct.dataclass
class BreakoutState:
    paddle: Float[Array, ""]  # its left end, in pixels
    paddle_width: Float[Array, ""]
    x: Float[Array, ""]  # upper left corner of the ball
    y: Float[Array, ""]
    vx: Float[Array, ""]  # pixels per frame
    vy: Float[Array, ""]
    speed: Float[Array, ""]  # pixels per second, after the next hit of the paddle
    hits: Int[Array, ""]  # number of hits of the paddle in this round
    served: Bool[Array, ""]
    gone: UInt32[Array, " 6"]  # a bit for each brick that is gone
    score: Int[Array, ""]
    balls: Int[Array, ""]  # number of balls left after this one
    steps: Int[Array, ""]


class Hit(NamedTuple):
    """The first collision of the ball in a frame, and its position and velocity after it."""

    time: Float[Array, ""]  # in frames; 2 if there is no collision
    overlap: Float[Array, ""]
    x: Float[Array, ""]
    y: Float[Array, ""]
    vx: Float[Array, ""]
    vy: Float[Array, ""]
    target: Int[Array, ""]  # the number of a brick, or NONE, SIDE, TOP or PADDLED


def find_hit(s: BreakoutState) -> Hit:
    """Return the first collision of the ball with a brick or a wall.

    A ball moves by less than the height of a brick per frame. So of the lines along which the sides of bricks
    lie, it can cross only one vertical and one horizontal line.
    """
    zero = jnp.float32(0)
    nothing = Hit(jnp.float32(2), jnp.float32(-1), zero, zero, zero, zero, jnp.int32(NONE))
    right, down = s.vx > 0, s.vy > 0
    column = jnp.where(right, jnp.floor((s.x + BALL) / BRICK_WIDTH) + 1, jnp.ceil(s.x / BRICK_WIDTH) - 2)
    column, above = column.astype(jnp.int32), s.y - BRICK_TOP
    row = jnp.where(down, jnp.floor((above + BALL) / BRICK_HEIGHT) + 1, jnp.ceil(above / BRICK_HEIGHT) - 2)
    row = row.astype(jnp.int32)
    side = BRICK_TOP + BRICK_HEIGHT * (row + ~down)
    first = jnp.floor((s.x + s.vx * compute_hit_time(s, 1, side)) / BRICK_WIDTH).astype(jnp.int32)
    stand = [(BRICK_TOP + BRICK_HEIGHT * i, BRICK_HEIGHT, *find_brick(s, i, column)) for i in range(ROWS)]
    lie = [(BRICK_WIDTH * i, BRICK_WIDTH, *find_brick(s, row, i)) for i in (first, first + 1)]
    hit = find_wall_hit(nothing, s, 0, BRICK_WIDTH * (column + ~right), stand)
    hit = find_wall_hit(hit, s, 1, side, lie)
    hit = find_wall_hit(hit, s, 0, jnp.where(right, WIDTH, 0), [(0, HEIGHT, jnp.bool_(True), SIDE)])
    return find_wall_hit(hit, s, 1, jnp.where(down, jnp.inf, 0), [(0, WIDTH, jnp.bool_(True), TOP)])


def find_brick(s: BreakoutState, row: Any, column: Int[Array, ""]) -> tuple[Bool[Array, ""], Any]:
    """Return whether there is a brick at a row and column, and its number."""
    bits = s.gone[row] if isinstance(row, int) else jnp.where(np.arange(ROWS) == row, s.gone, 0).sum(dtype=jnp.uint32)
    gone = bits >> jnp.clip(column, 0, COLUMNS - 1).astype(jnp.uint32) & 1
    inside = (row >= 0) & (row < ROWS) & (column >= 0) & (column < COLUMNS)
    return inside & (gone == 0), row * COLUMNS + column


def compute_hit_time(s: BreakoutState, axis: int, wall: Any) -> Float[Array, ""]:
    """Return the number of frames until the ball reaches a wall ahead of it, along an axis (0 is x, 1 is y)."""
    place, speed = (s.x, s.y)[axis], (s.vx, s.vy)[axis]
    return (wall - (place + jnp.where(speed > 0, BALL, 0))) / speed


def compute_overlap(s: BreakoutState, axis: int, moment: Any, start: Any, length: Any) -> Float[Array, ""]:
    """Return the overlap of the ball with a segment along an axis, after `moment` frames."""
    place, way = (s.x, s.y)[axis], (s.vx, s.vy)[axis] * moment
    return jnp.minimum(start + length, place + BALL + way) - jnp.maximum(start, place + way)


def find_wall_hit(hit: Hit, s: BreakoutState, axis: int, wall: Any, pieces: list[tuple[Any, Any, Array, Any]]) -> Hit:
    """Return the first of `hit` and the collisions with the pieces of a wall across an axis.

    A piece is its start along the wall, its length, whether it exists, and the target of the collision.
    """
    moment, speed = compute_hit_time(s, axis, wall), (s.vx, s.vy)[axis]
    x, y, edge = s.x + s.vx * moment, s.y + s.vy * moment, wall - jnp.where(speed > 0, jnp.float32(BALL), 0)
    x, y, vx, vy = (edge, y, -s.vx, s.vy) if axis == 0 else (x, edge, s.vx, -s.vy)
    for start, length, there, what in pieces:
        covered = compute_overlap(s, 1 - axis, moment, start, length)
        hit = select_earlier_hit(hit, Hit(moment, covered, x, y, vx, vy, jnp.int32(what)), there & (speed != 0))
    return hit


def select_earlier_hit(hit: Hit, new: Hit, there: Bool[Array, ""]) -> Hit:
    """Return the earlier of two collisions, or the one with more overlap if both are at the same time.

    The new one counts only if `there` is true, the ball overlaps, and it is within the frame.
    """
    sooner = (new.time < hit.time) | ((new.time == hit.time) & (new.overlap > hit.overlap))
    return tree.select(there & (new.overlap > 0) & (new.time > 0) & (new.time <= 1) & sooner, new, hit)
