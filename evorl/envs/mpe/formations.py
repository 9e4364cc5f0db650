"""Scenarios in which agents have to form a line or a circle."""

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
from evorl.part_docs import complete_docstring
from evorl.types import Key

LENGTH, RADIUS, IN_PLACE = 1.25, 0.5, 0.05  # line length, circle radius, distance that counts as solved
MAX_ENUMERATED_AGENTS = 5  # up to this number, all assignments are tried


@dataclass(frozen=True)
class Formation(ABC):
    """Base class of scenarios in which each agent has to take one of the target positions.

    All agents get minus the mean distance of agents from their targets, where each distance counts at most 2.
    Targets are assigned so that the sum of the distances is minimal.

    Args:
        num_agents: Number of agents.
        terminate_on_success: Whether an episode terminates once all agents are within 0.05 of their targets.
    """

    num_agents: int = 4
    terminate_on_success: bool = False

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
        """Return the target positions, shape [2, agents]."""
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
        """Return the distances of agents from their targets."""
        return compute_assigned_distances(compute_distances(state.agent_positions, self.get_target_positions(state)))


@complete_docstring
@dataclass(frozen=True)
class SimpleLine(Formation):
    """Agents that have to spread evenly along the line between two landmarks (mpe2's simple_line).

    All agents get minus the mean distance of agents from their targets, where each distance counts at most 2.
    Targets are assigned so that the sum of the distances is minimal. Each agent observes itself and the
    landmarks.

    Raises:
        OptionError: If num_agents is below 1.
    """

    size = 0.03

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with the two ends of the line."""
        return {"landmark": EntityGroup(2, 0.02, GRAY, span=0.25)}

    def init_state(self, key: Key) -> MPEState:
        """Return a random state whose second landmark lies 1.25 from the first one.

        Its direction is random, and turned by steps of 5 degrees until the landmark is within [-1, 1]^2.
        """
        state = super().init_state(key)
        first, drawn = state.landmark_positions.T
        angle = jnp.pi * (drawn[0] / 0.25 + 1) + np.radians(5 * np.arange(72)).astype(np.float32)
        ends = first[:, None] + LENGTH * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        last = ends[:, (jnp.abs(ends) < 1).all(0).argmax()]
        return replace(state, landmark_positions=jnp.stack([first, last], axis=-1))

    def get_target_positions(self, state: MPEState) -> Float[Array, "2 agents"]:
        """Return evenly spaced points from the first to the second landmark, shape [2, agents]."""
        first, last = state.landmark_positions.T
        along = np.linspace(0, 1, self.num_agents, dtype=np.float32)
        return first[:, None] + (last - first)[:, None] * along


@complete_docstring
@dataclass(frozen=True)
class SimpleFormation(Formation):
    """Agents that have to spread evenly on a circle of radius 0.5 around a landmark (mpe2's simple_formation).

    All agents get minus the mean distance of agents from their targets, where each distance counts at most 2.
    The first target is in the direction of the agent with the smallest angle in [0, 2 pi). Targets are
    assigned so that the sum of the distances is minimal. Each agent observes itself and the landmark.

    Raises:
        OptionError: If num_agents is below 1.
    """

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with the center of the circle."""
        return {"landmark": EntityGroup(1, 0.03, GRAY, span=0.5)}

    def get_target_positions(self, state: MPEState) -> Float[Array, "2 agents"]:
        """Return evenly spaced points on the circle, shape [2, agents]."""
        n, whole = self.num_agents, 2 * np.pi
        x, y = state.agent_positions - state.landmark_positions
        angle = jnp.arctan2(y, x)
        first = jnp.where(angle < 0, angle + whole, angle).min()
        angles = first + np.arange(n, dtype=np.float32) * np.float32(whole / n)
        return state.landmark_positions + RADIUS * jnp.stack([jnp.cos(angles), jnp.sin(angles)])


def compute_assigned_distances(far: Float[Array, "n n"]) -> Float[Array, " n"]:
    """Return the distances of agents (rows) from assigned targets (columns) in the assignment with the least sum."""
    n = len(far)
    if n > MAX_ENUMERATED_AGENTS:
        agents, places = hungarian_algorithm(far)
        return far[agents, places]
    orders = np.array([*permutations(range(n))])
    chosen = jax.nn.one_hot(orders, n)  # [orders, n, n]
    best = (far * chosen).sum((-2, -1)).argmin()
    return (far * chosen[best]).sum(-1)
