"""Scenarios in which agents know the goals of others and have to communicate them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.observations import concatenate_vectors
from evorl.envs.mpe.world import DARK, GRAY, EntityGroup, EntityGroups, MPEState, compute_offsets, init_entities, norm
from evorl.errors import require
from evorl.types import Key

NUM_LANDMARKS = 3
SPEAKER_COLORS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))  # of the goal, for the speaker
REFERENCE_COLORS = ((0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75))


@dataclass(frozen=True)
class SimpleSpeakerListener:
    """A speaker that knows the goal, and a listener that has to reach it (mpe2's simple_speaker_listener).

    Both get minus the squared distance of the listener from the goal landmark. The speaker observes the color
    of the goal, says one of three words and cannot move. The listener observes the landmarks and the message.
    """

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `speaker` and `listener`, with one agent each."""
        speaker = EntityGroup(1, 0.075, GRAY, moves=False, num_words=NUM_LANDMARKS)
        return {"speaker": speaker, "listener": EntityGroup(1, 0.075, DARK)}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with three landmarks of different colors."""
        return {"landmark": EntityGroup(NUM_LANDMARKS, 0.04, colors=SPEAKER_COLORS)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions and a random goal landmark."""
        return init_entities(key, self.agents, self.landmarks, (NUM_LANDMARKS,))

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return the color of the goal for the speaker; velocity, landmarks and the message for the listener."""
        assert state.messages is not None
        marks = compute_offsets(state.agent_positions, state.landmark_positions)
        listener = jnp.concatenate([concatenate_vectors(state.velocity, marks)[1:], state.messages], axis=-1)
        return {"speaker": to_color_array(SPEAKER_COLORS)[state.goal], "listener": listener}

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return minus the squared distance of the listener from the goal, for both."""
        far = ((state.agent_positions[:, 1:] - state.landmark_positions[:, state.goal]) ** 2).sum(0)
        return {"speaker": -far, "listener": -far}


@dataclass(frozen=True)
class SimpleReference:
    """Two agents that each know the goal of the other, and say one of ten words (mpe2's simple_reference).

    Each agent observes the color of the landmark that the other has to reach. Its reward combines minus the
    distance of the other from there, with weight `local_ratio`, and minus the mean of both distances, with
    the remaining weight.

    Args:
        local_ratio: Weight of an agent's own part of the reward, from 0 to 1.

    Raises:
        OptionError: If local_ratio is not between 0 and 1.
    """

    local_ratio: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.local_ratio <= 1, "local_ratio", self.local_ratio, "must be from 0 to 1")

    @property
    def agents(self) -> EntityGroups:
        """Return the group `agent`, with two agents."""
        return {"agent": EntityGroup(2, color=DARK, num_words=10)}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with three landmarks of different colors."""
        return {"landmark": EntityGroup(NUM_LANDMARKS, colors=REFERENCE_COLORS)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions and a random goal landmark for each agent."""
        return init_entities(key, self.agents, self.landmarks, (NUM_LANDMARKS, NUM_LANDMARKS))

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return velocity, landmarks, the color of the other agent's goal, and the other agent's message."""
        assert state.messages is not None
        place = concatenate_vectors(state.velocity, compute_offsets(state.agent_positions, state.landmark_positions))
        return {
            "agent": jnp.concatenate(
                [place, to_color_array(REFERENCE_COLORS)[state.goal], state.messages[::-1]], axis=-1
            )
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return minus local_ratio * distance of the other from its goal - (1 - local_ratio) * mean distance."""
        far = norm(state.agent_positions[:, ::-1] - state.landmark_positions[:, state.goal])
        return {"agent": -self.local_ratio * far - (1 - self.local_ratio) * far.mean()}


def to_color_array(of: tuple[tuple[float, float, float], ...]) -> Array:
    """Convert colors of landmarks to an array, shape [landmarks, 3]."""
    return jnp.asarray(np.array(of, np.float32))
