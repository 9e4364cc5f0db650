"""Training data of NFSP: a replay buffer for the best response, and a reservoir for the average policy."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl.leagues.pending_choices import PendingChoices, compute_choice_mask, select_role_transitions
from evorl.leagues.roles import Roles
from evorl.replay.reservoir import ReservoirBuffer
from evorl.spaces import Space
from evorl.types import Key, ReplayBuffer, ReplayFactory, Transition


@struct.dataclass
class PlayerExperience:
    """Training data of one player, from n environments."""

    replay: ReplayBuffer  # transitions from one choice of the player to its next one
    reservoir: ReservoirBuffer  # observations and actions of its best responses
    pending_choices: PendingChoices

    @classmethod
    def empty(
        cls, row: Transition, n: int, replay: tuple[ReplayFactory, int], reservoir: int, key: Key
    ) -> "PlayerExperience":
        """Create empty buffers for transitions with the shapes of `row`; `replay` is a factory and a capacity."""
        kind, capacity = replay
        choices = ReservoirBuffer.empty(reservoir, {"obs": row.obs, "action": row.action}, key)
        return cls(kind.empty(capacity, row, n), choices, PendingChoices.empty(row, n))

    def add(
        self,
        space: Space,
        t: Transition,
        mask: Bool[Array, "steps n"],
        lost: Bool[Array, "steps n"],
        responds: Bool[Array, "steps n"],
    ) -> "PlayerExperience":
        """Return the experience with transitions of a player added.

        Args:
            space: Observation space of the player.
            t: Transitions, leaves [steps, n, ...].
            mask: Steps that are added.
            lost: Steps that were lost, after which a new episode follows.
            responds: Steps at which the player acted by its best response. The reservoir receives these
                actions, where the player had a choice.
        """
        turns, rows, there = self.pending_choices.advance(space, t, mask, lost)
        choices: Any = {"obs": t.obs, "action": t.action}
        kept = self.reservoir.add(choices, mask & responds & compute_choice_mask(space, t, mask.shape))
        return PlayerExperience(self.replay.add(rows, there), kept, turns)


def add_player_experience(
    roles: Roles,
    before: dict[str, PlayerExperience],
    t: Transition,
    mask: Bool[Array, "steps n"],
    lost: Bool[Array, "steps n"],
    by_policy: Bool[Array, ""],
) -> dict[str, PlayerExperience]:
    """Return the experience of all players, by role, with the transitions of a game added.

    Args:
        roles: Roles of the game.
        before: Experience, by role.
        t: Transitions, leaves [steps, n, ...]. Their extras say, by role, which players act by their best
            response, shape [steps, n, players].
        mask: Steps that are added.
        lost: Steps that were lost, after which a new episode follows.
        by_policy: If false, all actions were random, and the reservoirs receive none of them.
    """
    found = {}
    for role in roles.roles:
        responds = jnp.moveaxis(t.extras[role.name] == 1, -1, 0) & by_policy
        add = jax.vmap(PlayerExperience.add, (0, None, 0, None, None, 0))
        found[role.name] = add(
            before[role.name], role.observation_space, select_role_transitions(roles, role, t), mask, lost, responds
        )
    return found
