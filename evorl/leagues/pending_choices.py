"""What a player of a game learns from: what comes of its choices, up to the next of them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import tree
from evorl.agents.losses import choice_mask
from evorl.leagues.roles import Role, Roles
from evorl.spaces import Space, has_choice
from evorl.types import MemberEnds, Transition


@struct.dataclass
class PendingChoices:
    """A player's last choice in each of n environments, whose outcome is still to come."""

    choice: Transition  # leaves [n, ...], its reward the sum since then
    pending_mask: Bool[Array, " n"]  # whether there is one

    @classmethod
    def empty(cls, row: Transition, n: int) -> "PendingChoices":
        """Of transitions like row, an array or shapes."""
        return cls(tree.broadcast(tree.zeros_like(row), n), jnp.zeros(n, bool))

    def advance(
        self, space: Space, transitions: Transition, mask: Bool[Array, "steps n"]
    ) -> tuple["PendingChoices", Transition, Bool[Array, "steps n"]]:
        """Takes in transitions, leaves [steps, n, ...], where mask; space is that of the observations.

        Returns with those that then wait the transitions that end at each step, and where there are any. What is earned
        without a choice counts for the choice before it. Where time runs out when there is no choice, nobody knows what
        follows, and there is none.
        """

        def step(
            turns: PendingChoices, now: tuple[Transition, Array, Array, Array]
        ) -> tuple[PendingChoices, tuple[Transition, Array]]:
            t, mask, own, following = now
            begins = mask & own
            choice = tree.select(own, t, turns.choice)
            earned = jnp.where(own, t.reward, turns.choice.reward + t.reward)
            ends = {"next_obs": t.next_obs, "terminated": t.terminated, "truncated": t.truncated}
            choice = tree.select(mask, replace(choice, reward=earned, **ends), turns.choice)
            waits = turns.pending_mask | begins
            there = waits & mask & (t.terminated | following)
            return PendingChoices(choice, waits & ~there & ~(mask & t.is_done)), (choice, there)

        own = compute_choice_mask(space, transitions, mask.shape)
        following = _broadcast_choice(has_choice(space, transitions.next_obs), mask.shape)
        after, (found, there) = jax.lax.scan(step, self, (transitions, mask, own, following))
        return after, found, there

    def clear(self, where: Bool[Array, ""]) -> "PendingChoices":
        """Where so nothing waits any more."""
        return replace(self, pending_mask=self.pending_mask & ~where)


def select_role_transitions(roles: Roles, role: Role, t: Transition) -> Transition:
    """What the players of a role have of a game's transitions, [steps, n, ...]: leaves [players, steps, n, ...]."""
    of_one = lambda values: roles.stack_players(role, values)  # noqa: E731
    each = jax.vmap(jax.vmap(of_one, out_axes=1), out_axes=1)
    obs, action, reward, next_obs = (each(x) for x in (t.obs, t.action, t.reward, t.next_obs))
    terminated, truncated = tree.broadcast((t.terminated, t.truncated), len(role.players))
    gone = None
    if t.member_ends is not None:
        gone, own = each(t.members_done), (each(t.member_ends.terminated), each(t.member_ends.truncated))
        terminated, truncated = MemberEnds.merge_game_end((terminated, truncated), own, gone)
    return Transition(obs, action, reward, next_obs, terminated, truncated, members_done=gone)


def compute_choice_mask(space: Space, t: Transition, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """At which steps of a shape a player had a choice; space is that of its observations."""
    return _broadcast_choice(choice_mask(space, t), shape)


def _broadcast_choice(choice: Any, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    return jnp.ones(shape, bool) if choice is None else choice
