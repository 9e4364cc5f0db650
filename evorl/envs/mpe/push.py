"""Scenario in which an agent knows its goal, and an adversary keeps it away."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.observations import concatenate_vectors, drop_self, flatten_vectors
from evorl.envs.mpe.world import (
    GREEN,
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

LANDMARK_COLORS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))  # of the landmarks, in observations
GOAL_COLORS = np.array([[0.25, 0.75, 0.25], [0.25, 0.25, 0.75]], np.float32)  # of the agent, by its goal


@dataclass(frozen=True)
class SimplePush:
    """An agent that knows the goal, and an adversary that pushes it away (mpe2's simple_push).

    The agent's reward is minus its distance from the goal. The adversary gets the agent's distance minus its
    own. The adversary observes the landmarks and the agent. The agent also observes the goal, and colors that
    identify it.
    """

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `adversary` and `agent`, with one agent each."""
        return {
            "adversary": EntityGroup(1, color=RED, collides=True),
            "agent": EntityGroup(1, color=GREEN, collides=True),
        }

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with two landmarks of different colors."""
        return {"landmark": EntityGroup(2, colors=LANDMARK_COLORS)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions and a random goal landmark."""
        return init_entities(key, self.agents, self.landmarks, (2,))

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return velocity, landmarks and the other agent; for the agent also the goal, its color and all colors."""
        marks, other = (
            compute_offsets(state.agent_positions, state.landmark_positions),
            drop_self(compute_offsets(state.agent_positions, state.agent_positions)),
        )
        goal = compute_offsets(state.agent_positions, state.landmark_positions[:, state.goal])
        colors = jnp.asarray(np.reshape(LANDMARK_COLORS, (1, -1)), jnp.float32)
        parts = (
            concatenate_vectors(state.velocity, goal)[1:],
            jnp.asarray(GOAL_COLORS)[state.goal],
            flatten_vectors(marks)[1:],
            colors,
            flatten_vectors(other)[1:],
        )
        return {
            "adversary": concatenate_vectors(state.velocity, marks, other)[:1],
            "agent": jnp.concatenate(parts, axis=-1),
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return minus the agent's distance from the goal; for the adversary, this distance minus its own."""
        far = split_by_group(
            self.agents, compute_distances(state.agent_positions, state.landmark_positions[:, state.goal])[:, 0]
        )
        return {"adversary": far["agent"] - far["adversary"], "agent": -far["agent"]}
