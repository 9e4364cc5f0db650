"""Agents that know where others are to go, and tell them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.observations import concatenate_vectors
from evorl.envs.mpe.world import DARK, GRAY, EntityGroup, EntityGroups, MPEState, compute_offsets, init_entities, norm
from evorl.errors import require
from evorl.types import Key

NUM_LANDMARKS = 3
SPEAKER_COLORS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))  # what a speaker sees of the goal
REFERENCE_COLORS = ((0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75))


@dataclass(frozen=True)
class SimpleSpeakerListener:
    """Both lose the squared distance of the listener from the goal, whose color the speaker sees.

    The speaker says one of three words and stands still; the listener sees landmarks and hears it.
    """

    @property
    def agents(self) -> EntityGroups:
        speaker = EntityGroup(1, 0.075, GRAY, moves=False, num_words=NUM_LANDMARKS)
        return {"speaker": speaker, "listener": EntityGroup(1, 0.075, DARK)}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(NUM_LANDMARKS, 0.04, colors=SPEAKER_COLORS)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks, (NUM_LANDMARKS,))

    def observe(self, state: MPEState) -> dict[str, Array]:
        assert state.messages is not None
        marks = compute_offsets(state.agent_positions, state.landmark_positions)
        listener = jnp.concatenate([concatenate_vectors(state.velocity, marks)[1:], state.messages], axis=-1)
        return {"speaker": to_color_array(SPEAKER_COLORS)[state.goal], "listener": listener}

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        far = ((state.agent_positions[:, 1:] - state.landmark_positions[:, state.goal]) ** 2).sum(0)
        return {"speaker": -far, "listener": -far}


@dataclass(frozen=True)
class SimpleReference:
    """Each of two agents knows the color of the landmark to which the other is to go, and says one of ten words.

    Each loses the distance of the other from there, with the weight `local_ratio`, and both the mean with the rest.
    """

    local_ratio: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.local_ratio <= 1, "local_ratio", self.local_ratio, "must be from 0 to 1")

    @property
    def agents(self) -> EntityGroups:
        return {"agent": EntityGroup(2, color=DARK, num_words=10)}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(NUM_LANDMARKS, colors=REFERENCE_COLORS)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks, (NUM_LANDMARKS, NUM_LANDMARKS))

    def observe(self, state: MPEState) -> dict[str, Array]:
        assert state.messages is not None
        place = concatenate_vectors(state.velocity, compute_offsets(state.agent_positions, state.landmark_positions))
        return {
            "agent": jnp.concatenate(
                [place, to_color_array(REFERENCE_COLORS)[state.goal], state.messages[::-1]], axis=-1
            )
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        far = norm(state.agent_positions[:, ::-1] - state.landmark_positions[:, state.goal])
        return {"agent": -self.local_ratio * far - (1 - self.local_ratio) * far.mean()}


def to_color_array(of: tuple[tuple[float, float, float], ...]) -> Array:
    """As an array, [landmarks, 3]."""
    return jnp.asarray(np.array(of, np.float32))
