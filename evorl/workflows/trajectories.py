"""Rollouts of environments that are not in step: a step on the host may wait for some of them alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import Transition
from evorl.vector_env.rollout_plan import truncate_before_lost


@struct.dataclass
class Trajectories:
    """The first steps of n environments, leaves [most, n, ...], a column for each, and how many there are of each."""

    rows: Transition  # their weight is 0 where they are lost or not there
    lengths: Int[Array, " n"]

    @classmethod
    def empty(cls, row: Transition, most: int, n: int) -> "Trajectories":
        """Of transitions like row, an array or shapes."""
        row = replace(row, weight=jax.ShapeDtypeStruct((), jnp.float32))
        return cls(tree.broadcast(tree.zeros_like(row), most, n), jnp.zeros(n, jnp.int32))

    def add(self, transitions: Transition, mask: Bool[Array, "steps n"]) -> "Trajectories":
        """Those with the transitions, leaves [steps, n, ...]: each environment's come first, and end where lost."""
        there = mask | find_lost_transitions(transitions, mask)
        most, env_index = tree.leading_size(self.rows), jnp.arange(mask.shape[1])
        place = jnp.where(there, self.lengths + jnp.arange(len(mask))[:, None], most)
        transitions = replace(transitions, weight=mask.astype(jnp.float32))
        rows = jax.tree.map(lambda x, new: x.at[place, env_index].set(new, mode="drop"), self.rows, transitions)
        return Trajectories(rows, self.lengths + there.sum(0))

    @property
    def transitions(self) -> Transition:
        """The steps, of which those end after which none is there; so their successor is valued."""
        return replace(truncate_before_lost(self.rows), weight=self.rows.weight)


def find_lost_transitions(transitions: Transition, mask: Bool[Array, "steps n"]) -> Bool[Array, "steps n"]:
    """Of transitions that a play gives where not all environments are waited for, which the host has lost."""
    return ~mask & transitions.truncated
