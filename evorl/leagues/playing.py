"""What policies of a pool pay each other, found by playing."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


@dataclass(frozen=True)
class Profiles:
    """One policy of a pool for each player."""

    players: int
    capacity: int

    def of(self, newest: Int[Array, ""]) -> Bool[Array, "..."]:
        """Which profiles, [capacity, ..., capacity], have the newest policy for some player, and none beyond it."""
        each = jnp.arange(self.capacity)
        grid = jnp.stack(jnp.meshgrid(*[each] * self.players, indexing="ij"))
        return (grid == newest).any(0) & (grid <= newest).all(0)
