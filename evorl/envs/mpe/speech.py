"""Agents that know where others are to go, and tell them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.sight import row
from evorl.envs.mpe.world import DARK, GRAY, Kind, Kinds, MPEState, norm, relative, started
from evorl.errors import require
from evorl.types import Key

LANDMARKS = 3
PURE = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))  # what a speaker sees of the goal
PALE = ((0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75))


@dataclass(frozen=True)
class SimpleSpeakerListener:
    """Both lose the squared distance of the listener from the goal, whose color the speaker sees.

    The speaker says one of three words and stands still; the listener sees landmarks and hears it.
    """

    @property
    def agents(self) -> Kinds:
        speaker = Kind(1, 0.075, GRAY, moves=False, words=LANDMARKS)
        return {"speaker": speaker, "listener": Kind(1, 0.075, DARK)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(LANDMARKS, 0.04, colors=PURE)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks, (LANDMARKS,))

    def seen(self, state: MPEState) -> dict[str, Array]:
        marks = relative(state.at, state.marks)
        listener = jnp.concatenate([row(state.velocity, marks)[1:], state.said], axis=-1)
        return {"speaker": colors(PURE)[state.goal], "listener": listener}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        far = ((state.at[:, 1:] - state.marks[:, state.goal]) ** 2).sum(0)
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
    def agents(self) -> Kinds:
        return {"agent": Kind(2, color=DARK, words=10)}

    @property
    def landmarks(self) -> Kinds:
        return {"landmark": Kind(LANDMARKS, colors=PALE)}

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks, (LANDMARKS, LANDMARKS))

    def seen(self, state: MPEState) -> dict[str, Array]:
        place = row(state.velocity, relative(state.at, state.marks))
        return {"agent": jnp.concatenate([place, colors(PALE)[state.goal], state.said[::-1]], axis=-1)}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        far = norm(state.at[:, ::-1] - state.marks[:, state.goal])
        return {"agent": -self.local_ratio * far - (1 - self.local_ratio) * far.mean()}


def colors(of: tuple[tuple[float, float, float], ...]) -> Array:
    """As an array, [landmarks, 3]."""
    return jnp.asarray(np.array(of, np.float32))
