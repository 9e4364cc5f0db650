"""Exact values of policies in a game tree: best responses, mixtures, payoffs of all against all."""

import string
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.envs.games.game_tree import GameTree
from evorl.leagues.sequence_form import SequenceForm
from evorl.leagues.tabular_policies import normalize_policy
from evorl.types import Metrics

ROUNDING_TOLERANCE = 1e-6  # of what is summed, up to which two actions are worth the same


def best_response(
    tree: GameTree, policy: Float[Array, "sets actions"], ties: Float[Array, "sets actions"] | None = None
) -> tuple[Float[Array, " players"], Float[Array, "sets actions"]]:
    """What each player gets at most where the others play a policy, and by which actions, one for each information set.

    Of actions that are worth the same, up to rounding, it takes the one with the most of `ties`, else the first; so
    too where the others never let it come.
    """
    form = SequenceForm.from_tree(tree)
    worth = form.compute_counterfactual_payoffs(form.compute_realization_plan(policy))
    best, value = form.apply_backward_induction(worth, lambda value, sets: _mask_illegal(tree, value, sets).max(-1))
    summed = form.apply_backward_induction(jnp.abs(worth), lambda value, sets: value.sum(-1))[1]
    value = jnp.where(tree.legal_mask, value, -jnp.inf)
    near = value >= value.max(-1, keepdims=True) - ROUNDING_TOLERANCE * summed.sum(-1, keepdims=True)
    choice = jnp.argmax(near if ties is None else jnp.where(near, ties, -jnp.inf), -1)
    return best, jax.nn.one_hot(choice, tree.num_actions)


def nash_conv(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, ""]:
    """What all players together would gain, each by its best response; 0 in an equilibrium (Lanctot et al. 2017)."""
    form = SequenceForm.from_tree(tree)
    plan = form.compute_realization_plan(policy)
    worth = form.compute_counterfactual_payoffs(plan)
    best = form.apply_backward_induction(worth, lambda value, sets: _mask_illegal(tree, value, sets).max(-1))[0]
    return best.sum() - (worth * plan[form.end_sequences]).sum()


def exploitability(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, ""]:
    """NashConv for each player: in a zero-sum game of two what a policy loses to its best response on average."""
    return nash_conv(tree, policy) / tree.players


def exploitability_metrics(tree: GameTree, policy: Float[Array, "sets actions"]) -> Metrics:
    """How good a policy is: "nash_conv", "exploitability" and "return", which is minus the latter."""
    return nash_conv_to_metrics(nash_conv(tree, policy), tree.players)


def nash_conv_to_metrics(found: Float[Array, ""], players: int) -> Metrics:
    """NashConv as exploitability_metrics tells it."""
    return {"return": -found / players, "nash_conv": found, "exploitability": found / players}


def mix_policies(
    tree: GameTree, policies: Float[Array, "policies sets actions"], weights: Float[Array, "players policies"]
) -> Float[Array, "sets actions"]:
    """The policy that plays as if each player drew one of the policies before the game, with its weights.

    Actions are averaged by how likely the player itself comes there (Kuhn 1953), and are alike where it never does.
    """
    form = SequenceForm.from_tree(tree)
    plans = jax.vmap(lambda policy: form.to_table(form.compute_realization_plan(policy)))(policies)
    return normalize_policy(tree, (weights.T[:, tree.owner, None] * plans).sum(0))


def compute_payoffs(
    tree: GameTree, policies: Float[Array, "policies sets actions"] | Sequence[Float[Array, "_ sets actions"]]
) -> Float[Array, "players ..."]:
    """What each player gets on average, [players, policies of player 0, policies of player 1, ...].

    All play the same policies, or each those of its own stack; one matrix product over the ends of the game.
    """
    form = SequenceForm.from_tree(tree)
    stacks = policies if isinstance(policies, Sequence) else [policies] * tree.players
    own = [
        jax.vmap(form.compute_realization_plan)(stack)[:, last]
        for stack, last in zip(stacks, form.end_sequences, strict=True)
    ]
    axes = string.ascii_lowercase[: tree.players]
    each = ",".join(f"{axis}Z" for axis in axes)
    return jnp.einsum(f"IZ,{each}->I{axes}", form.end_payoffs, *own, precision="highest")


def _mask_illegal(
    tree: GameTree, value: Float[Array, "some actions"], sets: np.ndarray
) -> Float[Array, "some actions"]:
    """The worth of actions, and less than any of illegal ones."""
    return jnp.where(tree.legal_mask[sets], value, -jnp.inf)
