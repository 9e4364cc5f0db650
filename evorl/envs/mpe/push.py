"""An agent that knows its goal, and an adversary that keeps it from there."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.sight import others, row, rows
from evorl.envs.mpe.world import GREEN, RED, Kind, Kinds, MPEState, by_group, distances, relative, started
from evorl.types import Key

COLORS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))  # of the landmarks, as they are seen
OWN = np.array([[0.25, 0.75, 0.25], [0.25, 0.25, 0.75]], np.float32)  # of the agent, by its goal


@dataclass(frozen=True)
class SimplePush:
    """The agent loses its distance from the goal; the adversary earns it and loses its own.

    The adversary sees landmarks and the agent, the agent also the goal and colors that say which it is.
    """

    @property
    def agents(self) -> Kinds:
        return {"adversary": Kind(1, color=RED, collides=True), "agent": Kind(1, color=GREEN, collides=True)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(2, colors=COLORS)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks, (2,))

    def seen(self, state: MPEState) -> dict[str, Array]:
        marks, other = relative(state.at, state.marks), others(relative(state.at, state.at))
        goal = relative(state.at, state.marks[:, state.goal])
        colors = jnp.asarray(np.reshape(COLORS, (1, -1)), jnp.float32)
        parts = row(state.velocity, goal)[1:], jnp.asarray(OWN)[state.goal], rows(marks)[1:], colors, rows(other)[1:]
        return {"adversary": row(state.velocity, marks, other)[:1], "agent": jnp.concatenate(parts, axis=-1)}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        far = by_group(self.agents, distances(state.at, state.marks[:, state.goal])[:, 0])
        return {"adversary": far["agent"] - far["adversary"], "agent": -far["agent"]}
