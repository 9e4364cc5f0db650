"""Agents that know which landmark is the goal, and an adversary that does not."""

from dataclasses import dataclass

from jaxtyping import Array

from evorl.envs.mpe.observations import (
    concatenate_vectors,
    drop_self,
    require_members,
    require_neighbors,
    select_nearest,
)
from evorl.envs.mpe.world import (
    BLUE,
    DARK,
    RED,
    EntityGroup,
    EntityGroups,
    MPEState,
    compute_distances,
    compute_offsets,
    init_entities,
    split_by_group,
)
from evorl.types import Key


@dataclass(frozen=True)
class SimpleAdversary:
    """The adversary loses its distance from the goal; the others earn it, and lose that of the nearest of them.

    There are as many landmarks as agents that know. All see landmarks and the others, or so many `num_..._neighbors`
    that are nearest; those that know see the goal first.
    """

    num_good: int = 2
    num_agent_neighbors: int | None = None
    num_landmark_neighbors: int | None = None

    def __post_init__(self) -> None:
        require_members(num_good=self.num_good)
        near = {"num_agent_neighbors": self.num_agent_neighbors, "num_landmark_neighbors": self.num_landmark_neighbors}
        require_neighbors(**near)

    @property
    def agents(self) -> EntityGroups:
        return {"adversary": EntityGroup(1, 0.15, RED), "agent": EntityGroup(self.num_good, 0.15, BLUE)}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(self.num_good, 0.08, DARK)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks, (self.num_good,))

    def observe(self, state: MPEState) -> dict[str, Array]:
        marks = select_nearest(
            compute_offsets(state.agent_positions, state.landmark_positions), self.num_landmark_neighbors
        )[0]
        agents = select_nearest(
            drop_self(compute_offsets(state.agent_positions, state.agent_positions)), self.num_agent_neighbors
        )[0]
        goal = compute_offsets(state.agent_positions, state.landmark_positions[:, state.goal])
        return {
            "adversary": concatenate_vectors(marks, agents)[:1],
            "agent": concatenate_vectors(goal, marks, agents)[1:],
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        far = split_by_group(
            self.agents, compute_distances(state.agent_positions, state.landmark_positions[:, state.goal])[:, 0]
        )
        ours = far["adversary"] - far["agent"].min()
        return {"adversary": -far["adversary"], "agent": ours.repeat(self.num_good)}
