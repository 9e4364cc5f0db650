"""Finite games as trees, stored in arrays."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.games.open_spiel import OpenSpiel
from evorl.envs.games.rules import CHANCE, TERMINAL, Rules
from evorl.envs.games.tree_builder import build_tree_arrays

MAX_NODES = 1_000_000  # default limit of the number of nodes
PAYOFF_TOLERANCE = 1e-6  # of the sum of payoffs, relative to the largest one


@dataclass(frozen=True, eq=False, repr=False)
class GameTree:
    """Tree of all histories of a finite game, as NumPy arrays.

    Nodes are sorted by the length of their history; node 0 is the start. The children of a node are
    consecutive. The rows of `features` are what players can observe: first the information sets, then the
    information states of players that are not to move. The last row is zero; it is observed at nodes at which
    no player moves.

    Args:
        rules: Rules of the game.
        player: Player that moves, CHANCE or TERMINAL, [nodes].
        parent: Parent of each node, 0 for the first, [nodes].
        action: Action or outcome that led to each node, [nodes].
        chance_prob: Probability of the outcome that led to each node, 1 if a player moved, [nodes].
        first_child: First child of each node, [nodes].
        num_children: Number of children of each node, [nodes].
        payoffs: Payoffs, 0 at nodes that are not terminal, [nodes, players].
        information_rows: Row that each player observes, [nodes, players].
        features: Features of each row, [rows, width].
        legal_mask: Mask of the legal actions of each information set, [sets, actions].
        owner: Player that moves in each information set, [sets].
        level_offsets: First node of each history length, and at the end the number of nodes.
    """

    rules: Rules
    player: Int[np.ndarray, " nodes"]
    parent: Int[np.ndarray, " nodes"]
    action: Int[np.ndarray, " nodes"]
    chance_prob: Float[np.ndarray, " nodes"]
    first_child: Int[np.ndarray, " nodes"]
    num_children: Int[np.ndarray, " nodes"]
    payoffs: Float[np.ndarray, "nodes players"]
    information_rows: Int[np.ndarray, "nodes players"]
    features: Float[np.ndarray, "rows width"]
    legal_mask: Bool[np.ndarray, "sets actions"]
    owner: Int[np.ndarray, " sets"]
    level_offsets: tuple[int, ...]

    @classmethod
    def from_game(cls, game: "GameTree | Rules | str", limit: int = MAX_NODES) -> "GameTree":
        """Return the tree of a game.

        Args:
            game: Rules of a game, the name of a game in OpenSpiel, or a tree, which is returned unchanged.
            limit: Maximum number of nodes.

        Returns:
            The game tree.

        Raises:
            OptionError: If the game has more nodes than `limit`, or if its rules contradict themselves.
        """
        if isinstance(game, GameTree):
            return game
        return _build_tree(OpenSpiel(game) if isinstance(game, str) else game, limit)

    def __repr__(self) -> str:
        return f"GameTree({self.rules!r})"

    @property
    def players(self) -> int:
        """Return the number of players."""
        return self.payoffs.shape[1]

    @property
    def num_actions(self) -> int:
        """Return the number of actions."""
        return self.legal_mask.shape[1]

    @property
    def is_constant_sum(self) -> bool:
        """Return whether the payoffs have the same sum at all terminal nodes, up to rounding."""
        total = self.payoffs[self.player == TERMINAL].sum(1, dtype=np.float64)
        return bool(np.ptp(total) <= PAYOFF_TOLERANCE * max(1.0, np.abs(self.payoffs).max()))

    @cached_property
    def information_sets(self) -> Int[np.ndarray, " nodes"]:
        """Return the information set in which the player of each node moves, -1 if no player moves, [nodes]."""
        own = np.take_along_axis(self.information_rows, np.maximum(self.player, 0)[:, None], 1)[:, 0]
        return np.where(self.player >= 0, own, -1).astype(np.int32)

    @cached_property
    def children(self) -> Int[np.ndarray, "nodes actions"]:
        """Return the successor of each node by the action of its player, [nodes, actions].

        An illegal action leads to the same node as the first legal one. The successor of a terminal node is
        the node itself.
        """
        after = np.where(self.player == TERMINAL, np.arange(len(self.player), dtype=np.int32), self.first_child)
        found = np.tile(after[:, None], (1, self.num_actions))
        moved = np.flatnonzero(self.player[self.parent] >= 0)
        moved = moved[moved > 0]
        found[self.parent[moved], self.action[moved]] = moved
        return found

    def level_slice(self, level: int) -> slice:
        """Return the slice of the nodes of a level.

        Args:
            level: Length of the histories.
        """
        return slice(self.level_offsets[level], self.level_offsets[level + 1])

    def child_positions(self, level: int) -> Int[np.ndarray, "nodes children"]:
        """Return the positions of the children of a level's nodes within the next level, [nodes, children].

        Args:
            level: Length of the histories.

        Returns:
            Positions; entries without a child are the size of the next level, one past its end.
        """
        nodes, end = self.level_slice(level), self.level_offsets[level + 1]
        size = (self.level_offsets[level + 2] if level + 2 < len(self.level_offsets) else end) - end
        count = self.num_children[nodes, None]
        place = np.arange(max(count.max(), 1))
        return np.where(place < count, self.first_child[nodes, None] - end + place, size).astype(np.int32)

    def history(self, node: int) -> list[int]:
        """Return the actions and outcomes that lead to a node.

        Args:
            node: Index of the node.
        """
        found = []
        while node:
            found.append(int(self.action[node]))
            node = int(self.parent[node])
        return found[::-1]

    def format_node(self, node: int) -> str:
        """Return a description of a node in the words of the game, followed by the payoffs if it is terminal.

        Args:
            node: Index of the node, from 0 to the number of nodes minus 1.
        """
        state = self.rules.init_state()
        for action in self.history(node):
            state = self.rules.apply_action(state, action)
        paid = [f"player {i} gets {payoff:g}" for i, payoff in enumerate(self.payoffs[node])]
        return "\n".join([self.rules.format_state(state), *(paid if self.player[node] == TERMINAL else [])])


def reach_probabilities(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, "parts nodes"]:
    """Return the contributions of each player, and last of chance, to the reach probability of each node.

    All players follow one policy, whose rows are the information sets. The product of the contributions is
    the probability of the node's history. They are computed level by level, each from its parent, so that
    nothing is scattered.
    """
    above = tree.parent
    who = jnp.asarray(np.where(tree.player[above] == CHANCE, tree.players, tree.player[above]))
    chosen = policy[tree.information_sets[above], np.minimum(tree.action, tree.num_actions - 1)]
    step = jnp.where(who == tree.players, tree.chance_prob, chosen)
    step = jnp.where(who == np.arange(tree.players + 1)[:, None], step, 1.0)
    found = [jnp.ones((tree.players + 1, 1))]
    for level in range(1, len(tree.level_offsets) - 1):
        nodes = tree.level_slice(level)
        found.append(found[-1][:, above[nodes] - tree.level_offsets[level - 1]] * step[:, nodes])
    return jnp.concatenate(found, 1)


def compute_expected_payoffs(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, " players"]:
    """Return the expected payoff of each player if all follow one policy, whose rows are the information sets."""
    return reach_probabilities(tree, policy).prod(0) @ tree.payoffs


@lru_cache(maxsize=16)
def _build_tree(rules: Rules, limit: int) -> GameTree:
    return GameTree(rules, **build_tree_arrays(rules, limit))
