"""One agent, one landmark."""

from dataclasses import dataclass

from jaxtyping import Array

from evorl.envs.mpe.observations import concatenate_vectors
from evorl.envs.mpe.world import DARK, RED, EntityGroup, EntityGroups, MPEState, compute_offsets, init_entities
from evorl.types import Key


@dataclass(frozen=True)
class Simple:
    """The agent loses its squared distance from the landmark."""

    @property
    def agents(self) -> EntityGroups:
        return {"agent": EntityGroup(1, color=DARK)}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(1, color=RED)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        return {
            "agent": concatenate_vectors(
                state.velocity, compute_offsets(state.agent_positions, state.landmark_positions)
            )
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        return {"agent": -((state.agent_positions - state.landmark_positions) ** 2).sum(0)}
