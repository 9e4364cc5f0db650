"""Agents that are to cover landmarks."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool

from evorl.envs.mpe.observations import (
    concatenate_vectors,
    drop_self,
    require_members,
    require_neighbors,
    select_nearest,
)
from evorl.envs.mpe.world import (
    BLUE,
    GRAY,
    EntityGroup,
    EntityGroups,
    MPEState,
    compute_distances,
    compute_offsets,
    init_entities,
)
from evorl.errors import require
from evorl.types import Key

COVER_DISTANCE = 0.1  # distance within which a landmark is
AGENT_SIZE = 0.15


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
    def agents(self) -> EntityGroups:
        return {"agent": EntityGroup(self.num_agents, AGENT_SIZE, BLUE, collides=True)}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(self.num_agents, color=GRAY)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        marks = select_nearest(
            compute_offsets(state.agent_positions, state.landmark_positions), self.num_landmark_neighbors
        )[0]
        agents = select_nearest(
            drop_self(compute_offsets(state.agent_positions, state.agent_positions)), self.num_agent_neighbors
        )[0]
        silence = jnp.zeros_like(agents)  # two words of each that nobody says
        return {"agent": concatenate_vectors(state.velocity, state.agent_positions, marks, agents, silence)}

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        far = compute_distances(state.agent_positions, state.landmark_positions).min(0).sum()
        touched = (compute_distances(state.agent_positions, state.agent_positions) < 2 * AGENT_SIZE).sum(
            -1
        ) - 1.0  # but by itself
        return {"agent": -(1 - self.local_ratio) * far - self.local_ratio * self.stage * touched}

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        return (compute_distances(state.agent_positions, state.landmark_positions).min(0) < COVER_DISTANCE).all()
