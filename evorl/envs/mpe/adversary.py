"""Scenario in which good agents know which landmark is the goal, and an adversary does not."""

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
    """Good agents, which know the goal, against an adversary that has to find it (mpe2's simple_adversary).

    The adversary's reward is minus its distance from the goal landmark. Each good agent gets the adversary's
    distance minus the distance of the nearest good agent. There are as many landmarks as good agents.

    Args:
        num_good: Number of good agents.
        num_agent_neighbors: Number of nearest agents that each agent observes; None observes all.
        num_landmark_neighbors: Number of nearest landmarks that each agent observes; None observes all.

    Raises:
        OptionError: If a number is below 1.
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
        """Return the groups `adversary` (one agent) and `agent` (the good agents)."""
        return {"adversary": EntityGroup(1, 0.15, RED), "agent": EntityGroup(self.num_good, 0.15, BLUE)}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with as many landmarks as good agents."""
        return {"landmark": EntityGroup(self.num_good, 0.08, DARK)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions and a random goal landmark."""
        return init_entities(key, self.agents, self.landmarks, (self.num_good,))

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return the relative positions of landmarks and agents; good agents also get the goal's, first."""
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
        """Return minus the adversary's distance from the goal; for good agents, its distance minus their least one."""
        far = split_by_group(
            self.agents, compute_distances(state.agent_positions, state.landmark_positions[:, state.goal])[:, 0]
        )
        ours = far["adversary"] - far["agent"].min()
        return {"adversary": -far["adversary"], "agent": ours.repeat(self.num_good)}
