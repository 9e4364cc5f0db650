"""One agent, one landmark."""

from dataclasses import dataclass

from jaxtyping import Array

from evorl.envs.mpe.sight import row
from evorl.envs.mpe.world import DARK, RED, Kind, Kinds, MPEState, relative, started
from evorl.types import Key


@dataclass(frozen=True)
class Simple:
    """The agent loses its squared distance from the landmark."""

    @property
    def agents(self) -> Kinds:
        return {"agent": Kind(1, color=DARK)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(1, color=RED)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks)

    def seen(self, state: MPEState) -> dict[str, Array]:
        return {"agent": row(state.velocity, relative(state.at, state.marks))}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        return {"agent": -((state.at - state.marks) ** 2).sum(0)}
