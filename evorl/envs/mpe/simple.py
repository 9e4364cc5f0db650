"""Scenario with one agent and one landmark."""

from dataclasses import dataclass

from jaxtyping import Array

from evorl.envs.mpe.observations import concatenate_vectors
from evorl.envs.mpe.world import DARK, RED, EntityGroup, EntityGroups, MPEState, compute_offsets, init_entities
from evorl.types import Key


@dataclass(frozen=True)
class Simple:
    """One agent that has to reach a landmark (mpe2's simple); its reward is minus the squared distance."""

    @property
    def agents(self) -> EntityGroups:
        """Return the group `agent`, with one agent."""
        return {"agent": EntityGroup(1, color=DARK)}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with one landmark."""
        return {"landmark": EntityGroup(1, color=RED)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions."""
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return the agent's velocity and the relative position of the landmark."""
        return {
            "agent": concatenate_vectors(
                state.velocity, compute_offsets(state.agent_positions, state.landmark_positions)
            )
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return minus the squared distance between the agent and the landmark."""
        return {"agent": -((state.agent_positions - state.landmark_positions) ** 2).sum(0)}
