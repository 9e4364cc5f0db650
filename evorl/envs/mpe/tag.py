"""Predators and faster prey among obstacles."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evorl.envs.mpe.sight import nearest, others, require_members, require_neighbors, row, to_each
from evorl.envs.mpe.world import (
    GRAY,
    GREEN,
    RED,
    Kind,
    Kinds,
    MPEState,
    by_group,
    distances,
    of_each,
    part,
    relative,
    started,
)
from evorl.errors import require
from evorl.types import Key

SPEED_OF_PREY = (0.5, 0.75, 1.0)  # by stage, a part of the full one


@dataclass(frozen=True)
class SimpleTag:
    """Each predator earns 10 for each touch of a predator and a prey, and the prey loses it; prey also loses outside.

    Predators are the group adversary, prey is agent. `stage` 0 or 1 is mpe2's curriculum before prey is as fast as it
    becomes. Each sees itself, obstacles, others, and the velocities of other prey; or of the `num_..._neighbors` that
    are nearest.
    """

    num_good: int = 1
    num_adversaries: int = 3
    num_obstacles: int = 2
    stage: int = 2
    terminate_on_success: bool = False  # when all prey is touched
    num_agent_neighbors: int | None = None
    num_landmark_neighbors: int | None = None

    def __post_init__(self) -> None:
        require_members(num_good=self.num_good, num_adversaries=self.num_adversaries)
        require_members(0, num_obstacles=self.num_obstacles)
        require(self.stage in (0, 1, 2), "stage", self.stage, "must be 0, 1 or 2, by which prey is slow, or fast")
        near = {"num_agent_neighbors": self.num_agent_neighbors, "num_landmark_neighbors": self.num_landmark_neighbors}
        require_neighbors(**near)

    @property
    def agents(self) -> Kinds:
        return chase(self.num_adversaries, self.num_good, SPEED_OF_PREY[self.stage], 0.05)

    @property
    def landmarks(self) -> Kinds:
        return {"obstacle": Kind(self.num_obstacles, 0.2, GRAY, collides=True, span=0.9)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks)

    def seen(self, state: MPEState) -> dict[str, Array]:
        marks = nearest(relative(state.at, state.marks), self.num_landmark_neighbors)[0]
        agents = others(relative(state.at, state.at))
        known = [state.velocity, state.at, marks]
        if self.num_agent_neighbors is None:
            return by_sight(self.agents, [*known, agents], state.velocity)
        prey = state.velocity * (jnp.arange(state.at.shape[1]) >= self.num_adversaries)
        near = nearest(agents, self.num_agent_neighbors, others(to_each(prey)))
        return by_group(self.agents, row(*known, *near))

    def rewards(self, state: MPEState) -> dict[str, Array]:
        touches = touching(self.agents, state)
        prey = -10.0 * touches.sum(0) - outside(state.at[:, part(self.agents, "agent")])
        return {"adversary": (10.0 * touches.sum()).repeat(self.num_adversaries), "agent": prey}

    def solved(self, state: MPEState) -> Bool[Array, ""]:
        return touching(self.agents, state).any(0).all()


def chase(predators: int, prey: int, factor: float, size: float) -> Kinds:
    """Predators, and prey that moves by a factor of its speed."""
    return {
        "adversary": Kind(predators, 0.075, RED, collides=True, accel=3.0, max_speed=1.0),
        "agent": Kind(prey, size, GREEN, collides=True, accel=4.0 * factor, max_speed=1.3 * factor),
    }


def touching(agents: Kinds, state: MPEState) -> Bool[Array, "predators prey"]:
    """Which predators touch which prey, who come last."""
    first, size = part(agents, "agent").start, of_each(agents, "size")
    return distances(state.at[:, :first], state.at[:, first:]) < size[:first, None] + size[first:]


def outside(at: Float[Array, "2 n"]) -> Float[Array, " n"]:
    """What agents lose for being near the border of the screen or beyond it."""
    x = jnp.abs(at)
    near = jnp.where(x < 0.9, 0.0, (x - 0.9) * 10)
    return jnp.where(x < 1.0, near, jnp.minimum(jnp.exp(2 * x - 2), 10.0)).sum(0)


def by_sight(agents: Kinds, known: list[Array], velocity: Float[Array, "2 agents"]) -> dict[str, Array]:
    """Rows of what is known, and then the velocities of other prey: a predator sees one more of them than prey does."""
    first = part(agents, "agent").start
    prey = to_each(velocity[:, first:])
    known_rows = row(*known)
    of_predators = jnp.broadcast_to(velocity[:, None, first:], (2, first, prey.shape[-1]))
    return {
        "adversary": jnp.concatenate([known_rows[:first], row(of_predators)], axis=-1),
        "agent": jnp.concatenate([known_rows[first:], row(others(prey))], axis=-1),
    }
