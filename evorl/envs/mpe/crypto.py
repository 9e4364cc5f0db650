"""Alice tells Bob a secret by a key, and Eve listens."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from evorl.envs.mpe.observations import one_hot
from evorl.envs.mpe.world import GRAY, GREEN, RED, EntityGroup, EntityGroups, MPEState, init_entities
from evorl.types import Key

WORDS, SECRETS = 4, 2


@dataclass(frozen=True)
class SimpleCrypto:
    """Eve loses the squared distance of what she says from the secret; Bob and Alice earn it, and lose that of Bob's.

    Who says nothing at all, which takes continuous actions, is not counted. Alice sees the secret and the key, Bob the
    key and what Alice said, Eve that alone. Nobody moves.
    """

    @property
    def agents(self) -> EntityGroups:
        colors = {"eve": RED, "bob": GREEN, "alice": GRAY}
        return {name: EntityGroup(1, color=color, moves=False, num_words=WORDS) for name, color in colors.items()}

    @property
    def landmarks(self) -> EntityGroups:
        return {"landmark": EntityGroup(SECRETS)}

    def init_state(self, key: Key) -> MPEState:
        return init_entities(key, self.agents, self.landmarks, (SECRETS, SECRETS))

    def observe(self, state: MPEState) -> dict[str, Array]:
        assert state.goal is not None
        assert state.messages is not None
        (secret, key), heard = one_hot(state.goal, WORDS)[:, None], state.messages[2:]
        return {
            "eve": heard,
            "bob": jnp.concatenate([key, heard], axis=-1),
            "alice": jnp.concatenate([secret, key], axis=-1),
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        assert state.goal is not None
        assert state.messages is not None
        wrong = ((state.messages - one_hot(state.goal[0], WORDS)) ** 2).sum(-1)
        eve, bob, _ = jnp.where((state.messages != 0).any(-1), wrong, 0.0)[:, None]
        return {"eve": -eve, "bob": eve - bob, "alice": eve - bob}
