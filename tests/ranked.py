"""A replay with priorities, simple and slow: a ring beside which every row's priority stands."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl.replay.ring import RingBuffer
from evorl.types import Sample


@struct.dataclass
class Ranking:
    ring: RingBuffer
    priorities: Any  # [capacity]; 0 of places without a row

    @property
    def size(self):
        return self.ring.size

    def add(self, rows, mask):
        ring, place = self.ring.add(rows, mask), jnp.arange(self.ring.capacity)
        added = (ring.position - self.ring.position) % self.ring.capacity  # never all of them at once
        new = (place - self.ring.position) % self.ring.capacity < added
        return Ranking(ring, jnp.where(new, jnp.maximum(self.priorities.max(), 1), self.priorities))

    def sample(self, key, shape):
        index = jax.random.categorical(key, jnp.log(self.priorities), shape=shape).astype(jnp.int32)
        tables = jax.tree.map(lambda x: x[index], self.ring.tables)
        probability = self.priorities[index] / self.priorities.sum()
        return Sample(self.ring.row.unpack(tables), index, 1 / (self.size * probability))

    def update_priorities(self, index, priority):
        return Ranking(self.ring, self.priorities.at[index].set(priority))


@dataclass(frozen=True)
class Ranked:
    has_sequences = False

    def empty(self, capacity, row, num_envs=1):
        return Ranking(RingBuffer.empty(capacity, row), jnp.zeros(capacity))
