"""The sequence form of a game tree."""

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

PaddedIndices: TypeAlias = Int[np.ndarray, "_ _"]  # [groups, the most of any], padded


@dataclass(frozen=True, eq=False)
class SequenceForm:
    """What players do themselves until a game ends (von Stengel 1996, Efficient computation of behavior strategies).

    A sequence is an information set with an action, and all that its player did before; each player has an empty one.
    They are in order of length: the empty ones, then one for each action of those sets whose player has not moved yet,
    and so on, so that all that is done here takes as many steps as a player has turns. All arrays are NumPy's.
    """

    tree: GameTree
    set_order: Int[np.ndarray, " sets"]  # information sets by how often their player has moved before
    depth_offsets: tuple[int, ...]  # where those of each number of moves begin there, and their number
    parent_sequences: Int[np.ndarray, " sets"]  # in that order, the sequence that leads to each
    end_sequences: Int[np.ndarray, "players ends"]  # each player's sequence at each end of the game
    end_payoffs: Float[np.ndarray, "players ends"]  # its payoff there, times the probability of chance
    end_indices: tuple[PaddedIndices, ...]  # of each length: where in end_sequences, flat, each is, else beyond it
    child_sets: tuple[PaddedIndices, ...]  # and which of the sets of one move more it leads to, else beyond them

    @classmethod
    def from_tree(cls, tree: GameTree) -> "SequenceForm":
        """That of a tree; raises OptionError where a player forgets what it did or knew (imperfect recall)."""
        return _build_sequence_form(tree)

    def select_sets(self, moves: int) -> Int[np.ndarray, " some"]:
        """The information sets whose player has moved so often before."""
        return self.set_order[self.depth_offsets[moves] : self.depth_offsets[moves + 1]]

    def compute_realization_plan(self, policy: Float[Array, "sets actions"]) -> Float[Array, " sequences"]:
        """How likely a player makes each of its sequences, as far as that is up to itself (its realization plan)."""
        found, begin = [jnp.ones(self.tree.players)], 0
        for moves in range(len(self.depth_offsets) - 1):
            above = self.parent_sequences[self.depth_offsets[moves] : self.depth_offsets[moves + 1]] - begin
            begin += len(found[-1])
            found.append((found[-1][above, None] * policy[self.select_sets(moves)]).ravel())
        return jnp.concatenate(found)

    def to_table(self, plan: Float[Array, " sequences"]) -> Float[Array, "sets actions"]:
        """The sequences of a plan that are not empty, by the information set and the action that they end with."""
        return plan[self.tree.players :].reshape(self.tree.legal_mask.shape)[np.argsort(self.set_order)]

    def compute_counterfactual_payoffs(self, plan: Float[Array, " sequences"]) -> Float[Array, "players ends"]:
        """Each player's payoff at each end, times how likely chance and the others come there."""
        own = plan[self.end_sequences]
        rivals = [np.delete(np.arange(len(own)), player) for player in range(len(own))]
        return jnp.asarray(self.end_payoffs) * jnp.stack([own[who].prod(0) for who in rivals])

    def apply_backward_induction(
        self,
        worth: Float[Array, "players ends"],
        fold: Callable[[Float[Array, "some actions"], Int[np.ndarray, " some"]], Float[Array, " some"]],
    ) -> tuple[Float[Array, " players"], Float[Array, "sets actions"]]:
        """From what ends are worth, what each player's game is, and each action in each information set.

        `fold` makes of the worth of all actions in some information sets, whose numbers it is given, that of the sets.
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
    for row in np.flatnonzero(above >= players).tolist():  # the set before has a smaller number
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
    """Each player's sequence at each node, and that before each information set, sets in the tree's order."""
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
        raise OptionError(f"tree={tree.rules!r}: player {tree.player[node]} forgets what it did or knew before {at!r}")
    return led, above


def _compute_chance_reach(tree: GameTree) -> Float[np.ndarray, " nodes"]:
    """How likely chance, as far as that is up to it, makes each history."""
    found = tree.chance_prob.copy()
    for level in range(1, len(tree.level_offsets) - 1):
        nodes = tree.level_slice(level)
        found[nodes] *= found[tree.parent[nodes]]
    return found


def _group_indices(numbers: Int[np.ndarray, " items"], low: int, high: int) -> PaddedIndices:
    """Where each number from low on and below high is among numbers, padded with their length."""
    order = np.argsort(numbers, kind="stable")
    begin, end = np.searchsorted(numbers[order], [np.arange(low, high), np.arange(low + 1, high + 1)])
    place = begin[:, None] + np.arange((end - begin).max(initial=0))
    return np.where(place < end[:, None], np.append(order, len(order))[place.clip(max=len(order))], len(order)).astype(
        np.int32
    )
