"""What a player of a game learns from: what comes of its choices, up to the next of them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import tree
from evorl.agents.losses import chooses
from evorl.leagues.roles import Role, Roles
from evorl.spaces import Space, has_choice
from evorl.types import Ends, Transition


@struct.dataclass
class Turns:
    """A player's last choice in each of n slots, whose outcome is still to come."""

    choice: Transition  # leaves [n, ...], its reward the sum since then
    waits: Any  # [n] bool, whether there is one

    @classmethod
    def empty(cls, row: Transition, n: int) -> "Turns":
        """Of transitions like row, an array or shapes."""
        return cls(tree.broadcast(tree.zeros(row), n), jnp.zeros(n, bool))

    def advance(
        self, space: Space, transitions: Transition, mask: Bool[Array, "steps n"]
    ) -> tuple["Turns", Transition, Bool[Array, "steps n"]]:
        """Takes in transitions, leaves [steps, n, ...], where mask; space is that of the observations.

        Returns with those that then wait the transitions that end at each step, and where there are any. What is earned
        without a choice counts for the choice before it. Where time runs out when there is no choice, nobody knows what
        follows, and there is none.
        """

        def step(turns: Turns, now: tuple[Transition, Array, Array, Array]) -> tuple[Turns, tuple[Transition, Array]]:
            t, mask, own, following = now
            begins = mask & own
            choice = tree.where(own, t, turns.choice)
            earned = jnp.where(own, t.reward, turns.choice.reward + t.reward)
            ends = {"next_obs": t.next_obs, "terminated": t.terminated, "truncated": t.truncated}
            choice = tree.where(mask, replace(choice, reward=earned, **ends), turns.choice)
            waits = turns.waits | begins
            there = waits & mask & (t.terminated | following)
            return Turns(choice, waits & ~there & ~(mask & t.ended)), (choice, there)

        own = chose(space, transitions, mask.shape)
        following = _everywhere(has_choice(space, transitions.next_obs), mask.shape)
        after, (found, there) = jax.lax.scan(step, self, (transitions, mask, own, following))
        return after, found, there

    def without(self, where: Bool[Array, ""]) -> "Turns":
        """Where so nothing waits any more."""
        return replace(self, waits=self.waits & ~where)


def of_role(roles: Roles, role: Role, t: Transition) -> Transition:
    """What the players of a role have of a game's transitions, [steps, n, ...]: leaves [players, steps, n, ...]."""
    of_one = lambda values: roles.stacked(role, values)  # noqa: E731
    each = jax.vmap(jax.vmap(of_one, out_axes=1), out_axes=1)
    obs, action, reward, next_obs = (each(x) for x in (t.obs, t.action, t.reward, t.next_obs))
    terminated, truncated = tree.broadcast((t.terminated, t.truncated), len(role.players))
    gone = ()
    if not isinstance(t.ends, tuple):
        gone, own = each(t.gone), (each(t.ends.terminated), each(t.ends.truncated))
        terminated, truncated = Ends.of_member((terminated, truncated), own, gone)
    return Transition(obs, action, reward, next_obs, terminated, truncated, gone=gone)


def chose(space: Space, t: Transition, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """At which steps of a shape a player had a choice; space is that of its observations."""
    return _everywhere(chooses(space, t), shape)


def _everywhere(choice: Any, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    return jnp.ones(shape, bool) if isinstance(choice, tuple) else choice
