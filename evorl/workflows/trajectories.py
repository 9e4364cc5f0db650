"""Trajectories of environments that do not step together, because a step on the host waits for only some of them."""

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
    """Consecutive steps of n environments, leaves [most, n, ...], and the number of steps of each environment."""

    rows: Transition  # lost or missing steps have weight 0
    lengths: Int[Array, " n"]

    @classmethod
    def empty(cls, row: Transition, most: int, n: int) -> "Trajectories":
        """Return empty trajectories for transitions like `row`, which may consist of shapes."""
        row = replace(row, weight=jax.ShapeDtypeStruct((), jnp.float32))
        return cls(tree.broadcast(tree.zeros_like(row), most, n), jnp.zeros(n, jnp.int32))

    def add(self, transitions: Transition, mask: Bool[Array, "steps n"]) -> "Trajectories":
        """Append transitions, leaves [steps, n, ...]; masked and lost steps of each environment must come first."""
        there = mask | find_lost_transitions(transitions, mask)
        most, env_index = tree.leading_size(self.rows), jnp.arange(mask.shape[1])
        place = jnp.where(there, self.lengths + jnp.arange(len(mask))[:, None], most)
        transitions = replace(transitions, weight=mask.astype(jnp.float32))
        rows = jax.tree.map(lambda x, new: x.at[place, env_index].set(new, mode="drop"), self.rows, transitions)
        return Trajectories(rows, self.lengths + there.sum(0))

    @property
    def transitions(self) -> Transition:
        """Return the steps; a step before a lost or missing one is truncated, so that its successor is bootstrapped."""
        return replace(truncate_before_lost(self.rows), weight=self.rows.weight)


def find_lost_transitions(transitions: Transition, mask: Bool[Array, "steps n"]) -> Bool[Array, "steps n"]:
    """Return which transitions of a rollout that does not wait for all environments were lost on the host."""
    return ~mask & transitions.truncated
