"""Sequence form of a game tree."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.games.game_tree import GameTree
from evorl.envs.games.rules import TERMINAL
from evorl.errors import OptionError

PaddedIndices: TypeAlias = Int[np.ndarray, "_ _"]  # [groups, maximum size of a group], padded


@dataclass(frozen=True, eq=False)
class SequenceForm:
    """Sequence form of a game tree (von Stengel 1996, Efficient computation of behavior strategies).

    A sequence is an information set with an action, and all earlier actions of its player. Each player also
    has an empty sequence. Sequences are sorted by length: first the empty ones, then one for each action of
    the information sets whose player has not moved yet, and so on. All computations therefore take as many
    steps as a player has turns. All arrays are NumPy arrays.
    """

    tree: GameTree
    set_order: Int[np.ndarray, " sets"]  # information sets, sorted by the number of earlier moves of their player
    depth_offsets: tuple[int, ...]  # first position in set_order for each number of moves, then the number of sets
    parent_sequences: Int[np.ndarray, " sets"]  # sequence that leads to each set, in the order of set_order
    end_sequences: Int[np.ndarray, "players ends"]  # sequence of each player at each terminal node
    end_payoffs: Float[np.ndarray, "players ends"]  # payoffs at the terminal nodes, times the probability of chance
    # for each length of sequences, the positions of each sequence in the flattened end_sequences, padded with its size
    end_indices: tuple[PaddedIndices, ...]
    # for each length of sequences, the sets to which each leads, as positions among the sets with that many moves,
    # padded with their number
    child_sets: tuple[PaddedIndices, ...]

    @classmethod
    def from_tree(cls, tree: GameTree) -> "SequenceForm":
        """Return the sequence form of a tree, in which no player may forget what it did or knew.

        Raise OptionError if a player does (imperfect recall).
        """
        return _build_sequence_form(tree)

    def select_sets(self, moves: int) -> Int[np.ndarray, " some"]:
        """Return the information sets whose player has made `moves` moves before."""
        return self.set_order[self.depth_offsets[moves] : self.depth_offsets[moves + 1]]

    def compute_realization_plan(self, policy: Float[Array, "sets actions"]) -> Float[Array, " sequences"]:
        """Return the realization plan of a policy, shape [sequences].

        The entry of a sequence is the product of the player's own action probabilities along it.
        """
        found, begin = [jnp.ones(self.tree.players)], 0
        for moves in range(len(self.depth_offsets) - 1):
            above = self.parent_sequences[self.depth_offsets[moves] : self.depth_offsets[moves + 1]] - begin
            begin += len(found[-1])
            found.append((found[-1][above, None] * policy[self.select_sets(moves)]).ravel())
        return jnp.concatenate(found)

    def to_table(self, plan: Float[Array, " sequences"]) -> Float[Array, "sets actions"]:
        """Return the nonempty sequences of a plan, by the information set and the action with which they end."""
        return plan[self.tree.players :].reshape(self.tree.legal_mask.shape)[np.argsort(self.set_order)]

    def compute_counterfactual_payoffs(self, plan: Float[Array, " sequences"]) -> Float[Array, "players ends"]:
        """Return each player's payoff at each terminal node, weighted by chance and the other players.

        The weight is the probability that chance and the other players reach the node.
        """
        own = plan[self.end_sequences]
        rivals = [np.delete(np.arange(len(own)), player) for player in range(len(own))]
        return jnp.asarray(self.end_payoffs) * jnp.stack([own[who].prod(0) for who in rivals])

    def apply_backward_induction(
        self,
        worth: Float[Array, "players ends"],
        fold: Callable[[Float[Array, "some actions"], Int[np.ndarray, " some"]], Float[Array, " some"]],
    ) -> tuple[Float[Array, " players"], Float[Array, "sets actions"]]:
        """Return the value of the game for each player, and of each action in each information set.

        `worth` contains the values of the terminal nodes. `fold` computes the values of some information sets
        from the values of their actions, given the indices of the sets.
        """
        worth = jnp.append(worth, 0.0)

        def sum_children(length: int, following: Array) -> Array:
            return worth[self.end_indices[length]].sum(-1) + following[self.child_sets[length]].sum(-1)

        found, following = [], jnp.zeros(1)
        for moves in reversed(range(len(self.depth_offsets) - 1)):
            found.append(sum_children(moves + 1, following).reshape(-1, self.tree.num_actions))
            following = jnp.append(fold(found[-1], self.select_sets(moves)), 0.0)
        return sum_children(0, following), jnp.concatenate(found[::-1])[np.argsort(self.set_order)]


@lru_cache(maxsize=16)
def _build_sequence_form(tree: GameTree) -> SequenceForm:
    players, actions, num_sets = tree.players, tree.num_actions, len(tree.owner)
    led, above = _find_sequences(tree)
    moved = np.zeros(num_sets, int)
    for row in np.flatnonzero(above >= players).tolist():  # earlier sets have smaller indices
        moved[row] = 1 + moved[(above[row] - players) // actions]
    order = np.argsort(moved, kind="stable")
    starts = np.searchsorted(moved[order], np.arange(moved.max(initial=-1) + 2)).tolist()
    place = np.argsort(order)
    renamed = np.arange(players + num_sets * actions, dtype=np.int32)
    renamed[players:] = (players + place[:, None] * actions + np.arange(actions)).ravel()
    over = tree.player == TERMINAL
    last, above = renamed[led[over].T], renamed[above[order]]
    lengths = [0, *(players + actions * start for start in starts)]
    sets = [*starts, num_sets]
    ends = [_group_indices(last.ravel(), low, high) for low, high in pairwise(lengths)]
    below = [_group_indices(above[sets[i] : sets[i + 1]], *lengths[i : i + 2]) for i in range(len(starts))]
    worth = (tree.payoffs[over] * _compute_chance_reach(tree)[over, None]).T
    return SequenceForm(tree, order, tuple(starts), above, last, worth, tuple(ends), tuple(below))


def _find_sequences(tree: GameTree) -> tuple[Int[np.ndarray, "nodes players"], Int[np.ndarray, " sets"]]:
    """Return each player's sequence at each node, and the sequence before each information set, in the tree's order."""
    led = np.tile(np.arange(tree.players), (len(tree.player), 1))
    for level in range(1, len(tree.level_offsets) - 1):
        nodes = np.arange(*tree.level_offsets[level : level + 2])
        before = tree.parent[nodes]
        led[nodes] = led[before]
        chosen = tree.player[before] >= 0
        nodes, before = nodes[chosen], before[chosen]
        sequence = tree.players + tree.information_sets[before] * tree.num_actions + tree.action[nodes]
        led[nodes, tree.player[before]] = sequence
    moving = np.flatnonzero(tree.player >= 0)
    own, sets = led[moving, tree.player[moving]], tree.information_sets[moving]
    above = own[np.unique(sets, return_index=True)[1]]
    for node in moving[own != above[sets]][:1].tolist():
        at = " ".join(tree.format_node(node).split())
        raise OptionError(f"tree={tree.rules!r}: player {tree.player[node]} has imperfect recall at {at!r}")
    return led, above


def _compute_chance_reach(tree: GameTree) -> Float[np.ndarray, " nodes"]:
    """Return the contribution of chance to the reach probability of each node."""
    found = tree.chance_prob.copy()
    for level in range(1, len(tree.level_offsets) - 1):
        nodes = tree.level_slice(level)
        found[nodes] *= found[tree.parent[nodes]]
    return found


def _group_indices(numbers: Int[np.ndarray, " items"], low: int, high: int) -> PaddedIndices:
    """Return the positions of each number from `low` to below `high`, padded with the length of `numbers`."""
    order = np.argsort(numbers, kind="stable")
    begin, end = np.searchsorted(numbers[order], [np.arange(low, high), np.arange(low + 1, high + 1)])
    place = begin[:, None] + np.arange((end - begin).max(initial=0))
    return np.where(place < end[:, None], np.append(order, len(order))[place.clip(max=len(order))], len(order)).astype(
        np.int32
    )
