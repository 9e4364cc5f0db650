"""Agents that are to cover landmarks."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl.envs.mpe.sight import nearest, others, require_members, require_neighbors, row
from evorl.envs.mpe.world import BLUE, GRAY, Kind, Kinds, MPEState, distances, relative, started
from evorl.errors import require
from evorl.types import Key

COVERED = 0.1  # distance within which a landmark is
SIZE = 0.15


@dataclass(frozen=True)
class SimpleSpread:
    """All lose the distance from each landmark to the nearest agent, and each one 1 for every other that it touches.

    `local_ratio` is the weight of the second, the rest that of the first. `stage` 0 is mpe2's curriculum before
    collisions cost. Each sees itself, landmarks and other agents, or so many `num_..._neighbors` that are nearest.
    """

    num_agents: int = 3
    local_ratio: float = 0.5
    stage: int = 1
    terminate_on_success: bool = False  # when all landmarks are covered
    num_agent_neighbors: int | None = None
    num_landmark_neighbors: int | None = None

    def __post_init__(self) -> None:
        require_members(num_agents=self.num_agents)
        require(0 <= self.local_ratio <= 1, "local_ratio", self.local_ratio, "must be from 0 to 1")
        require(self.stage in (0, 1), "stage", self.stage, "must be 0, collisions cost nothing, or 1")
        near = {"num_agent_neighbors": self.num_agent_neighbors, "num_landmark_neighbors": self.num_landmark_neighbors}
        require_neighbors(**near)

    @property
    def agents(self) -> Kinds:
        return {"agent": Kind(self.num_agents, SIZE, BLUE, collides=True)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(self.num_agents, color=GRAY)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks)

    def seen(self, state: MPEState) -> dict[str, Array]:
        marks = nearest(relative(state.at, state.marks), self.num_landmark_neighbors)[0]
        agents = nearest(others(relative(state.at, state.at)), self.num_agent_neighbors)[0]
        silence = jnp.zeros_like(agents)  # two words of each that nobody says
        return {"agent": row(state.velocity, state.at, marks, agents, silence)}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        far = distances(state.at, state.marks).min(0).sum()
        touched = (distances(state.at, state.at) < 2 * SIZE).sum(-1) - 1.0  # but by itself
        return {"agent": -(1 - self.local_ratio) * far - self.local_ratio * self.stage * touched}

    def solved(self, state: MPEState) -> Bool[Array, ""]:
        return (distances(state.at, state.marks).min(0) < COVERED).all()
