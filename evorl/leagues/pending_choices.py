"""Transitions of a player in a turn-based game, each from one choice of the player to its next one."""

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
    """Last choice of a player in each of n environments, while its outcome is not yet known."""

    choice: Transition  # leaves [n, ...]; the reward is the sum since the choice
    pending_mask: Bool[Array, " n"]  # whether a choice is pending

    @classmethod
    def empty(cls, row: Transition, n: int) -> "PendingChoices":
        """Create an object without pending choices, for transitions with the shapes of `row`."""
        return cls(tree.broadcast(tree.zeros_like(row), n), jnp.zeros(n, bool))

    def advance(
        self, space: Space, transitions: Transition, mask: Bool[Array, "steps n"], lost: Bool[Array, "steps n"]
    ) -> tuple["PendingChoices", Transition, Bool[Array, "steps n"]]:
        """Process transitions of a player.

        A transition is complete at the player's next choice, or when the episode terminates. Rewards without
        a choice are added to those of the choice before. If an episode is truncated while the player has no
        choice, or its next step is lost, the outcome of its last choice is unknown, and the transition is
        dropped.

        Args:
            space: Observation space of the player.
            transitions: Transitions, leaves [steps, n, ...].
            mask: Steps that are processed.
            lost: Steps that were lost, after which a new episode follows.

        Returns:
            The choices that are still pending, the transitions that may be complete at each step, leaves
            [steps, n, ...], and a mask of those that are complete, shape [steps, n].
        """

        def step(
            turns: PendingChoices, now: tuple[Transition, Array, Array, Array, Array]
        ) -> tuple[PendingChoices, tuple[Transition, Array]]:
            t, mask, lost, own, following = now
            begins = mask & own
            choice = tree.select(own, t, turns.choice)
            earned = jnp.where(own, t.reward, turns.choice.reward + t.reward)
            ends = {"next_obs": t.next_obs, "terminated": t.terminated, "truncated": t.truncated}
            choice = tree.select(mask, replace(choice, reward=earned, **ends), turns.choice)
            waits = turns.pending_mask | begins
            there = waits & mask & (t.terminated | following)
            return PendingChoices(choice, waits & ~there & ~(mask & t.is_done) & ~lost), (choice, there)

        own = compute_choice_mask(space, transitions, mask.shape)
        following = _broadcast_choice(has_choice(space, transitions.next_obs), mask.shape)
        after, (found, there) = jax.lax.scan(step, self, (transitions, mask, lost, own, following))
        return after, found, there

    def clear(self, where: Bool[Array, ""]) -> "PendingChoices":
        """Return the object without pending choices if `where` is true."""
        return replace(self, pending_mask=self.pending_mask & ~where)


def select_role_transitions(roles: Roles, role: Role, t: Transition) -> Transition:
    """Return the transitions of a role's players, leaves [players, steps, n, ...].

    `t` are the transitions of the game, leaves [steps, n, ...].
    """
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
    """Return a mask, of the given shape, of the steps at which a player with this observation space has a choice."""
    return _broadcast_choice(choice_mask(space, t), shape)


def _broadcast_choice(choice: Any, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    return jnp.ones(shape, bool) if choice is None else choice
