"""Agents that know which landmark is the goal, and an adversary that does not."""

from dataclasses import dataclass

from jaxtyping import Array

from evorl.envs.mpe.sight import nearest, others, require_members, require_neighbors, row
from evorl.envs.mpe.world import BLUE, DARK, RED, Kind, Kinds, MPEState, by_group, distances, relative, started
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
    def agents(self) -> Kinds:
        return {"adversary": Kind(1, 0.15, RED), "agent": Kind(self.num_good, 0.15, BLUE)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(self.num_good, 0.08, DARK)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks, (self.num_good,))

    def seen(self, state: MPEState) -> dict[str, Array]:
        marks = nearest(relative(state.at, state.marks), self.num_landmark_neighbors)[0]
        agents = nearest(others(relative(state.at, state.at)), self.num_agent_neighbors)[0]
        goal = relative(state.at, state.marks[:, state.goal])
        return {"adversary": row(marks, agents)[:1], "agent": row(goal, marks, agents)[1:]}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        far = by_group(self.agents, distances(state.at, state.marks[:, state.goal])[:, 0])
        ours = far["adversary"] - far["agent"].min()
        return {"adversary": -far["adversary"], "agent": ours.repeat(self.num_good)}
