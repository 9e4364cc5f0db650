"""Scenario in which agents have to cover landmarks."""

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

COVER_DISTANCE = 0.1  # a landmark is covered by an agent within this distance
AGENT_SIZE = 0.15


@dataclass(frozen=True)
class SimpleSpread:
    """Agents that have to cover all landmarks without collisions (mpe2's simple_spread).

    The coverage reward, common to all agents, is minus the sum over landmarks of the distance to the nearest
    agent. The collision penalty of an agent is 1 for each other agent that it touches. `local_ratio` weights
    the two. Each agent observes itself, the landmarks and the other agents.

    Args:
        num_agents: Number of agents, and of landmarks.
        local_ratio: Weight of the collision penalty, from 0 to 1; the coverage reward has the remaining
            weight.
        stage: Stage of mpe2's curriculum: in stage 0 collisions cost nothing, in stage 1 they do.
        terminate_on_success: Whether an episode terminates once each landmark is covered by an agent within
            0.1.
        num_agent_neighbors: Number of nearest agents that each agent observes; None observes all.
        num_landmark_neighbors: Number of nearest landmarks that each agent observes; None observes all.

    Raises:
        OptionError: If a value is not allowed.
    """

    num_agents: int = 3
    local_ratio: float = 0.5
    stage: int = 1
    terminate_on_success: bool = False
    num_agent_neighbors: int | None = None
    num_landmark_neighbors: int | None = None

    def __post_init__(self) -> None:
        require_members(num_agents=self.num_agents)
        require(0 <= self.local_ratio <= 1, "local_ratio", self.local_ratio, "must be from 0 to 1")
        require(self.stage in (0, 1), "stage", self.stage, "must be 0 (no penalty for collisions) or 1")
        near = {"num_agent_neighbors": self.num_agent_neighbors, "num_landmark_neighbors": self.num_landmark_neighbors}
        require_neighbors(**near)

    @property
    def agents(self) -> EntityGroups:
        """Return the group `agent`."""
        return {"agent": EntityGroup(self.num_agents, AGENT_SIZE, BLUE, collides=True)}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with as many landmarks as agents."""
        return {"landmark": EntityGroup(self.num_agents, color=GRAY)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with agents and landmarks at rest, at uniform positions in [-1, 1]^2."""
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return velocity, position, relative landmarks and agents, and zeros in place of mpe2's unused messages."""
        marks = select_nearest(
            compute_offsets(state.agent_positions, state.landmark_positions), self.num_landmark_neighbors
        )[0]
        agents = select_nearest(
            drop_self(compute_offsets(state.agent_positions, state.agent_positions)), self.num_agent_neighbors
        )[0]
        silence = jnp.zeros_like(agents)  # two unused message entries per agent
        return {"agent": concatenate_vectors(state.velocity, state.agent_positions, marks, agents, silence)}

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return the common coverage reward minus the collision penalty of each agent."""
        far = compute_distances(state.agent_positions, state.landmark_positions).min(0).sum()
        touched = (compute_distances(state.agent_positions, state.agent_positions) < 2 * AGENT_SIZE).sum(
            -1
        ) - 1.0  # without itself
        return {"agent": -(1 - self.local_ratio) * far - self.local_ratio * self.stage * touched}

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        return (compute_distances(state.agent_positions, state.landmark_positions).min(0) < COVER_DISTANCE).all()
