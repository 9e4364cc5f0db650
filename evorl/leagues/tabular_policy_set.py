"""Policy set of tabular policies."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.games.game_tree import GameTree
from evorl.tree import hash_tree
from evorl.types import Key, Memory


@dataclass(frozen=True, eq=False)
class TabularPolicySet:
    """Policy set of tabular policies; players find their information set by the features that they observe."""

    tree: GameTree

    initial_memory = None

    def act(self, kept: Float[Array, "sets actions"], obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory]:
        chances = jnp.where(obs["legal"], kept[self.find_information_set(obs["obs"])], 0.0)
        return jax.random.categorical(key, jnp.log(jnp.where(chances.sum() > 0, chances, obs["legal"]))), memory

    def find_information_set(self, features: Float[Array, " width"]) -> Int[Array, ""]:
        """Return the information set with the given features, or an arbitrary one if there is none."""
        names, sets, most = self._fingerprint_index
        own = hash_tree(features)
        some = jnp.searchsorted(jnp.asarray(names[:, 0]), own[0]) + jnp.arange(most)
        return jnp.asarray(sets)[some[jnp.argmax((jnp.asarray(names)[some] == own).all(-1))]]

    @cached_property
    def _fingerprint_index(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the sorted hashes of all information sets, [sets, 2], and the sets in this order.

        The third result is the maximum number of sets whose hashes have the same first word.
        """
        with jax.ensure_compile_time_eval():
            names = np.asarray(jax.vmap(hash_tree)(jnp.asarray(self.tree.features[: len(self.tree.owner)])))
        sets = np.lexsort((names[:, 1], names[:, 0]))
        return names[sets], sets.astype(np.int32), int(np.unique(names[:, 0], return_counts=True)[1].max())
