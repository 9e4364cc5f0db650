"""What a player of fictitious self-play learns from: a replay for its response, a reservoir for its average policy."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl.leagues.roles import Roles
from evorl.leagues.turns import Turns, chose, of_role
from evorl.replay.reservoir import Reservoir
from evorl.spaces import Space
from evorl.types import Key, Replay, Replays, Transition


@struct.dataclass
class Experience:
    """Of one player, from n slots."""

    replay: Replay  # of what came of its choices
    reservoir: Reservoir  # of the choices of its responses
    turns: Turns

    @classmethod
    def empty(cls, row: Transition, n: int, replay: tuple[Replays, int], reservoir: int, key: Key) -> "Experience":
        """Of transitions like row, by their shapes; a replay is of a kind and a capacity."""
        kind, capacity = replay
        choices = Reservoir.empty(reservoir, {"obs": row.obs, "action": row.action}, key)
        return cls(kind.empty(capacity, row, n), choices, Turns.empty(row, n))

    def add(
        self, space: Space, t: Transition, mask: Bool[Array, "steps n"], responds: Bool[Array, "steps n"]
    ) -> "Experience":
        """With what a player has seen, leaves [steps, n, ...], where mask; responds where its response chose.

        space is that of its observations.
        """
        turns, rows, there = self.turns.advance(space, t, mask)
        choices: Any = {"obs": t.obs, "action": t.action}
        kept = self.reservoir.add(choices, mask & responds & chose(space, t, mask.shape))
        return Experience(self.replay.add(rows, there), kept, turns)


def of_players(
    roles: Roles, before: dict[str, Experience], t: Transition, mask: Bool[Array, "steps n"], by_policy: Bool[Array, ""]
) -> dict[str, Experience]:
    """By role what the players have then, with a game's transitions, leaves [steps, n, ...], where mask.

    Extras are who plays a response, by role [steps, n, players]; unless by_policy all have acted at random.
    """
    found = {}
    for role in roles.roles:
        responds = jnp.moveaxis(t.extras[role.name] == 1, -1, 0) & by_policy
        add = jax.vmap(Experience.add, (0, None, 0, None, 0))
        found[role.name] = add(before[role.name], role.observation_space, of_role(roles, role, t), mask, responds)
    return found
