"""Sampling of the chance events of a finite game."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.games.game_tree import GameTree
from evorl.envs.games.rules import CHANCE
from evorl.types import Key


@dataclass(frozen=True, eq=False)
class ChanceTable:
    """Tables of the outcomes of chance at some nodes of a game tree; consecutive chance nodes are one draw."""

    node_rows: Int[np.ndarray, " nodes"]  # row of each node in the tables, -1 if it has none
    outcomes: Int[np.ndarray, "rows outcomes"]
    cumulative_probs: Float[np.ndarray, "rows outcomes"]  # of this outcome and those before it; 2 for the last

    @classmethod
    def from_tree(cls, tree: GameTree) -> tuple["ChanceTable", "ChanceTable"]:
        """Return the table of chance at the start of the game, and the table of chance after that.

        There are two tables because they have different sizes.
        """
        found: dict[int, list[tuple[int, float]]] = {}
        for node in np.flatnonzero(tree.player == CHANCE)[::-1].tolist():
            kids = range(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
            found[node] = [
                (end, float(tree.chance_prob[kid]) * p) for kid in kids for end, p in found.get(kid, [(kid, 1.0)])
            ]
        later = [node for node in found if node and tree.player[tree.parent[node]] != CHANCE]
        return cls._from_nodes(tree, found, [0] if 0 in found else []), cls._from_nodes(tree, found, later)

    @classmethod
    def _from_nodes(cls, tree: GameTree, found: dict[int, list[tuple[int, float]]], nodes: list[int]) -> "ChanceTable":
        most = max((len(found[node]) for node in nodes), default=0)
        row = np.full(len(tree.player), -1, np.int32)
        row[nodes] = np.arange(len(nodes))
        to, up_to = np.zeros((len(nodes), most), np.int32), np.full((len(nodes), most), 2, np.float32)
        for i, node in enumerate(nodes):
            ends, chances = zip(*found[node], strict=True)
            to[i] = np.resize(ends, most)
            up_to[i, : len(ends) - 1] = np.cumsum(chances)[:-1]
        return cls(row, to, up_to)

    def sample(self, key: Key, node: Int[Array, ""]) -> Int[Array, ""]:
        """Sample the node to which chance leads from a node; return the node itself if chance does not move there."""
        if not len(self.outcomes):
            return node
        row = jnp.asarray(self.node_rows)[node]
        which = (jax.random.uniform(key) >= jnp.asarray(self.cumulative_probs)[row]).sum(dtype=jnp.int32)
        return jnp.where(row < 0, node, jnp.asarray(self.outcomes)[row, which])
