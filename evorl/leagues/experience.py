"""What a player of fictitious self-play learns from: a replay for its response, a reservoir for its average policy."""

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
    """Of one player, from n environments."""

    replay: ReplayBuffer  # of what came of its choices
    reservoir: ReservoirBuffer  # of the choices of its responses
    pending_choices: PendingChoices

    @classmethod
    def empty(
        cls, row: Transition, n: int, replay: tuple[ReplayFactory, int], reservoir: int, key: Key
    ) -> "PlayerExperience":
        """Of transitions like row, by their shapes; a replay is of a kind and a capacity."""
        kind, capacity = replay
        choices = ReservoirBuffer.empty(reservoir, {"obs": row.obs, "action": row.action}, key)
        return cls(kind.empty(capacity, row, n), choices, PendingChoices.empty(row, n))

    def add(
        self, space: Space, t: Transition, mask: Bool[Array, "steps n"], responds: Bool[Array, "steps n"]
    ) -> "PlayerExperience":
        """With what a player has seen, leaves [steps, n, ...], where mask; responds where its response chose.

        space is that of its observations.
        """
        turns, rows, there = self.pending_choices.advance(space, t, mask)
        choices: Any = {"obs": t.obs, "action": t.action}
        kept = self.reservoir.add(choices, mask & responds & compute_choice_mask(space, t, mask.shape))
        return PlayerExperience(self.replay.add(rows, there), kept, turns)


def add_player_experience(
    roles: Roles,
    before: dict[str, PlayerExperience],
    t: Transition,
    mask: Bool[Array, "steps n"],
    by_policy: Bool[Array, ""],
) -> dict[str, PlayerExperience]:
    """By role what the players have then, with a game's transitions, leaves [steps, n, ...], where mask.

    Extras are who plays a response, by role [steps, n, players]; unless by_policy all have acted at random.
    """
    found = {}
    for role in roles.roles:
        responds = jnp.moveaxis(t.extras[role.name] == 1, -1, 0) & by_policy
        add = jax.vmap(PlayerExperience.add, (0, None, 0, None, 0))
        found[role.name] = add(
            before[role.name], role.observation_space, select_role_transitions(roles, role, t), mask, responds
        )
    return found
