"""Agents that are to stand in a line, or on a circle."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from optax.assignment import hungarian_algorithm

from evorl.envs.mpe.observations import concatenate_vectors, require_members
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
from evorl.types import Key

LENGTH, RADIUS, IN_PLACE = 1.25, 0.5, 0.05  # of the line, of the circle, and how near to its place an agent must be
MAX_ENUMERATED_AGENTS = 5  # agents of which all assignments are tried


@dataclass(frozen=True)
class Formation(ABC):
    """All lose the mean distance of agents, 2 at most, from places, assigned so that the distances are least in all."""

    num_agents: int = 4
    terminate_on_success: bool = False  # when all are within 0.05 of their places

    size = 0.05

    def __post_init__(self) -> None:
        require_members(num_agents=self.num_agents)

    @property
    def agents(self) -> EntityGroups:
        return {"agent": EntityGroup(self.num_agents, self.size, BLUE, collides=True)}

    @property
    @abstractmethod
    def landmarks(self) -> EntityGroups: ...

    @abstractmethod
    def get_target_positions(self, state: MPEState) -> Float[Array, "2 agents"]:
        """Where agents are to be."""
        ...

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        return {
            "agent": concatenate_vectors(
                state.velocity, state.agent_positions, compute_offsets(state.agent_positions, state.landmark_positions)
            )
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        missing = self.compute_position_errors(state)
        return {"agent": jnp.broadcast_to(-jnp.minimum(missing, 2.0).mean(), missing.shape)}

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        return (self.compute_position_errors(state) < IN_PLACE).all()

    def compute_position_errors(self, state: MPEState) -> Float[Array, " agents"]:
        """How far agents are from their places."""
        return compute_assigned_distances(compute_distances(state.agent_positions, self.get_target_positions(state)))


@dataclass(frozen=True)
class SimpleLine(Formation):
    """All lose the mean distance of agents, 2 at most, from places along the line between two landmarks.

    Places are assigned so that the distances are least in all. Each sees itself and the landmarks.
    """

    size = 0.03

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(2, 0.02, GRAY, span=0.25)}

    def init_state(self, key: Key) -> MPEState:
        """The second landmark lies in a random direction, turned by 5 degrees until it is inside."""
        state = super().init_state(key)
        first, drawn = state.landmark_positions.T
        angle = jnp.pi * (drawn[0] / 0.25 + 1) + np.radians(5 * np.arange(72)).astype(np.float32)
        ends = first[:, None] + LENGTH * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        last = ends[:, (jnp.abs(ends) < 1).all(0).argmax()]
        return replace(state, landmark_positions=jnp.stack([first, last], axis=-1))

    def get_target_positions(self, state: MPEState) -> Float[Array, "2 agents"]:
        first, last = state.landmark_positions.T
        along = np.linspace(0, 1, self.num_agents, dtype=np.float32)
        return first[:, None] + (last - first)[:, None] * along


@dataclass(frozen=True)
class SimpleFormation(Formation):
    """All lose the mean distance of agents, 2 at most, from places around a landmark, a circle of radius 0.5.

    The first place is in the direction of the agent with the least angle, from 0 on; places are assigned so that the
    distances are least in all. Each sees itself and the landmark.
    """

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(1, 0.03, GRAY, span=0.5)}

    def get_target_positions(self, state: MPEState) -> Float[Array, "2 agents"]:
        n, whole = self.num_agents, 2 * np.pi
        x, y = state.agent_positions - state.landmark_positions
        angle = jnp.arctan2(y, x)
        first = jnp.where(angle < 0, angle + whole, angle).min()
        angles = first + np.arange(n, dtype=np.float32) * np.float32(whole / n)
        return state.landmark_positions + RADIUS * jnp.stack([jnp.cos(angles), jnp.sin(angles)])


def compute_assigned_distances(far: Float[Array, "n n"]) -> Float[Array, " n"]:
    """How far agents, rows, are from their places, columns, where the sum of it is least."""
    n = len(far)
    if n > MAX_ENUMERATED_AGENTS:
        agents, places = hungarian_algorithm(far)
        return far[agents, places]
    orders = np.array([*permutations(range(n))])
    chosen = jax.nn.one_hot(orders, n)  # [orders, n, n]
    best = (far * chosen).sum((-2, -1)).argmin()
    return (far * chosen[best]).sum(-1)
