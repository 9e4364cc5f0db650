"""Rollouts of slots that are not in step with each other, as those on the host of which not all are waited for."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import tree
from evorl.types import Transition
from evorl.vector_env.rollout import parted


@struct.dataclass
class Trajectories:
    """The first steps of n slots, leaves [most, n, ...], each slot's in its column, and how many there are of each."""

    rows: Any  # their weight is 0 where they are lost or not there
    filled: Any  # [n] int32

    @classmethod
    def empty(cls, row: Transition, most: int, n: int) -> "Trajectories":
        """Of transitions like row, an array or shapes."""
        row = replace(row, weight=jax.ShapeDtypeStruct((), jnp.float32))
        return cls(tree.broadcast(tree.zeros(row), most, n), jnp.zeros(n, jnp.int32))

    def add(self, transitions: Transition, mask: Bool[Array, "steps n"]) -> "Trajectories":
        """Those with the transitions, leaves [steps, n, ...], of which each slot's come first, and end where lost."""
        there = mask | lost(transitions, mask)
        most, slot = tree.size(self.rows), jnp.arange(mask.shape[1])
        place = jnp.where(there, self.filled + jnp.arange(len(mask))[:, None], most)
        transitions = replace(transitions, weight=mask.astype(jnp.float32))
        rows = jax.tree.map(lambda x, new: x.at[place, slot].set(new, mode="drop"), self.rows, transitions)
        return Trajectories(rows, self.filled + there.sum(0))

    @property
    def rollout(self) -> Transition:
        """The steps, of which those end after which none is there; so their successor is valued."""
        return replace(parted(self.rows), weight=self.rows.weight)


def lost(transitions: Transition, mask: Bool[Array, "steps n"]) -> Bool[Array, "steps n"]:
    """Of transitions that a play gives where not all slots are waited for, which the host has lost."""
    return ~mask & transitions.truncated
