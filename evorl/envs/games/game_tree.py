"""A finite game as arrays."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.games.open_spiel import OpenSpiel
from evorl.envs.games.rules import CHANCE, TERMINAL, Rules
from evorl.envs.games.tree_builder import build_tree_arrays

MAX_NODES = 1_000_000  # nodes of a tree, unless another is given
PAYOFF_TOLERANCE = 1e-6  # of payoffs


@dataclass(frozen=True, eq=False, repr=False)
class GameTree:
    """All histories of a finite game as nodes, those of one length after those that are shorter; node 0 is the start.

    Children of a node stand side by side. Information sets are the first of the rows that players see; the last row
    is nothing, which is seen where no player is to move. All arrays are NumPy's.
    """

    rules: Rules
    player: Int[np.ndarray, " nodes"]  # who moves, CHANCE or TERMINAL
    parent: Int[np.ndarray, " nodes"]  # 0 of the first
    action: Int[np.ndarray, " nodes"]  # the action or outcome that led there
    chance_prob: Float[np.ndarray, " nodes"]  # its probability where it is an outcome, else 1
    first_child: Int[np.ndarray, " nodes"]  # its first child
    num_children: Int[np.ndarray, " nodes"]  # how many children it has
    payoffs: Float[np.ndarray, "nodes players"]  # 0 where the game is not over
    information_rows: Int[np.ndarray, "nodes players"]  # the row that each player sees
    features: Float[np.ndarray, "rows width"]
    legal_mask: Bool[np.ndarray, "sets actions"]  # of each information set
    owner: Int[np.ndarray, " sets"]  # the player of each
    level_offsets: tuple[int, ...]  # the first node of each length of history, and the number of nodes

    @classmethod
    def from_game(cls, game: "GameTree | Rules | str", limit: int = MAX_NODES) -> "GameTree":
        """The tree of rules, or of a game of OpenSpiel by its name; a tree itself.

        Raises OptionError above so many nodes, and where rules contradict themselves.
        """
        if isinstance(game, GameTree):
            return game
        return _build_tree(OpenSpiel(game) if isinstance(game, str) else game, limit)

    def __repr__(self) -> str:
        return f"GameTree({self.rules!r})"

    @property
    def players(self) -> int:
        return self.payoffs.shape[1]

    @property
    def num_actions(self) -> int:
        return self.legal_mask.shape[1]

    @property
    def is_constant_sum(self) -> bool:
        """Whether what the players get adds up to the same at every end, but for rounding."""
        total = self.payoffs[self.player == TERMINAL].sum(1, dtype=np.float64)
        return bool(np.ptp(total) <= PAYOFF_TOLERANCE * max(1.0, np.abs(self.payoffs).max()))

    @cached_property
    def information_sets(self) -> Int[np.ndarray, " nodes"]:
        """The information set in which a node's player moves, -1 where none does."""
        own = np.take_along_axis(self.information_rows, np.maximum(self.player, 0)[:, None], 1)[:, 0]
        return np.where(self.player >= 0, own, -1).astype(np.int32)

    @cached_property
    def children(self) -> Int[np.ndarray, "nodes actions"]:
        """The node after each action of a player, an illegal one as the first legal one; after an end itself."""
        after = np.where(self.player == TERMINAL, np.arange(len(self.player), dtype=np.int32), self.first_child)
        found = np.tile(after[:, None], (1, self.num_actions))
        moved = np.flatnonzero(self.player[self.parent] >= 0)
        moved = moved[moved > 0]
        found[self.parent[moved], self.action[moved]] = moved
        return found

    def level_slice(self, level: int) -> slice:
        """The nodes of a level."""
        return slice(self.level_offsets[level], self.level_offsets[level + 1])

    def child_positions(self, level: int) -> Int[np.ndarray, "nodes children"]:
        """Where in the next level the children of a level's nodes stand, and after its end where there is none."""
        nodes, end = self.level_slice(level), self.level_offsets[level + 1]
        size = (self.level_offsets[level + 2] if level + 2 < len(self.level_offsets) else end) - end
        count = self.num_children[nodes, None]
        place = np.arange(max(count.max(), 1))
        return np.where(place < count, self.first_child[nodes, None] - end + place, size).astype(np.int32)

    def history(self, node: int) -> list[int]:
        """The actions and outcomes that lead to a node."""
        found = []
        while node:
            found.append(int(self.action[node]))
            node = int(self.parent[node])
        return found[::-1]

    def format_node(self, node: int) -> str:
        """A node as the rules tell it, and what is paid there."""
        state = self.rules.init_state()
        for action in self.history(node):
            state = self.rules.apply_action(state, action)
        paid = [f"player {i} gets {payoff:g}" for i, payoff in enumerate(self.payoffs[node])]
        return "\n".join([self.rules.format_state(state), *(paid if self.player[node] == TERMINAL else [])])


def reach_probabilities(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, "parts nodes"]:
    """How likely each player alone, and at last chance, makes a history, where all play a policy; their product is 1's.

    Level by level by what a node takes from its parent, so that nothing is scattered.
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
    """What each player gets on average where all play a policy, by its row in each information set."""
    return reach_probabilities(tree, policy).prod(0) @ tree.payoffs


@lru_cache(maxsize=16)
def _build_tree(rules: Rules, limit: int) -> GameTree:
    return GameTree(rules, **build_tree_arrays(rules, limit))
