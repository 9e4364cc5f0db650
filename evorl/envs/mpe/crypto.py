"""Scenario in which Alice sends Bob a secret, encrypted with a key, while Eve listens."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from evorl.envs.mpe.observations import one_hot
from evorl.envs.mpe.world import GRAY, GREEN, RED, EntityGroup, EntityGroups, MPEState, init_entities
from evorl.types import Key

WORDS, SECRETS = 4, 2


@dataclass(frozen=True)
class SimpleCrypto:
    """Encrypted communication between Alice and Bob, to which Eve listens (mpe2's simple_crypto).

    Eve and Bob have to say the secret. Eve's reward is minus the squared distance of her message from the
    secret. Bob and Alice get Eve's squared distance minus Bob's. An empty message (all zeros), which only
    continuous actions allow, counts as distance 0. Alice observes the secret and the key, Bob the key and
    Alice's message, Eve only the message. The agents do not move.
    """

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `eve`, `bob` and `alice`, with one speaking agent each."""
        colors = {"eve": RED, "bob": GREEN, "alice": GRAY}
        return {name: EntityGroup(1, color=color, moves=False, num_words=WORDS) for name, color in colors.items()}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `landmark`, with one landmark per possible secret."""
        return {"landmark": EntityGroup(SECRETS)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with a random secret and a random key."""
        return init_entities(key, self.agents, self.landmarks, (SECRETS, SECRETS))

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return Alice's message for Eve; the key and the message for Bob; the secret and the key for Alice."""
        assert state.goal is not None
        assert state.messages is not None
        (secret, key), heard = one_hot(state.goal, WORDS)[:, None], state.messages[2:]
        return {
            "eve": heard,
            "bob": jnp.concatenate([key, heard], axis=-1),
            "alice": jnp.concatenate([secret, key], axis=-1),
        }

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return minus Eve's squared error for Eve, and Eve's minus Bob's squared error for Bob and Alice."""
        assert state.goal is not None
        assert state.messages is not None
        wrong = ((state.messages - one_hot(state.goal[0], WORDS)) ** 2).sum(-1)
        eve, bob, _ = jnp.where((state.messages != 0).any(-1), wrong, 0.0)[:, None]
        return {"eve": -eve, "bob": eve - bob, "alice": eve - bob}
