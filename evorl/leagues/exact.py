"""Exact values of policies in a game tree: best responses, exploitability, mixtures and payoff tables."""

import string
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from evorl.envs.games.game_tree import GameTree
from evorl.leagues.sequence_form import SequenceForm
from evorl.leagues.tabular_policies import normalize_policy
from evorl.types import Metrics

ROUNDING_TOLERANCE = 1e-6  # difference of tied action values, relative to the sum of absolute payoffs


def best_response(
    tree: GameTree, policy: Float[Array, "sets actions"], ties: Float[Array, "sets actions"] | None = None
) -> tuple[Float[Array, " players"], Float[Array, "sets actions"]]:
    """Return the payoffs of the players' best responses to a policy, [players], and their actions, one-hot.

    Actions whose values are equal up to rounding are tied. The tied action with the largest entry of `ties`
    is taken, or the first one without `ties`. In an information set that the other players never reach, all
    legal actions are tied.
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
    """Return NashConv: the sum of all players' gains by best responses; 0 in an equilibrium (Lanctot et al. 2017)."""
    form = SequenceForm.from_tree(tree)
    plan = form.compute_realization_plan(policy)
    worth = form.compute_counterfactual_payoffs(plan)
    best = form.apply_backward_induction(worth, lambda value, sets: _mask_illegal(tree, value, sets).max(-1))[0]
    return best.sum() - (worth * plan[form.end_sequences]).sum()


def exploitability(tree: GameTree, policy: Float[Array, "sets actions"]) -> Float[Array, ""]:
    """Return NashConv per player: in a two-player zero-sum game, the mean loss of a policy to its best response."""
    return nash_conv(tree, policy) / tree.players


def exploitability_metrics(tree: GameTree, policy: Float[Array, "sets actions"]) -> Metrics:
    """Return the metrics "nash_conv", "exploitability" and "return" (minus the exploitability) of a policy."""
    return nash_conv_to_metrics(nash_conv(tree, policy), tree.players)


def nash_conv_to_metrics(found: Float[Array, ""], players: int) -> Metrics:
    """Return the metrics of `exploitability_metrics` for a given NashConv."""
    return {"return": -found / players, "nash_conv": found, "exploitability": found / players}


def mix_policies(
    tree: GameTree, policies: Float[Array, "policies sets actions"], weights: Float[Array, "players policies"]
) -> Float[Array, "sets actions"]:
    """Return the policy that is equivalent to sampling a policy for each player, by its weights, before the game.

    The policies are averaged in proportion to their weights and to the player's own probability of reaching
    the information set (Kuhn 1953). In sets that the player never reaches, all legal actions are equally
    likely.
    """
    form = SequenceForm.from_tree(tree)
    plans = jax.vmap(lambda policy: form.to_table(form.compute_realization_plan(policy)))(policies)
    return normalize_policy(tree, (weights.T[:, tree.owner, None] * plans).sum(0))


def compute_payoffs(
    tree: GameTree, policies: Float[Array, "policies sets actions"] | Sequence[Float[Array, "_ sets actions"]]
) -> Float[Array, "players ..."]:
    """Return the expected payoffs of all profiles, [players, policies of player 0, policies of player 1, ...].

    All players choose from the same policies or, if a sequence is given, each player from its own stack. The
    result is one matrix product over the terminal nodes.
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


def compute_payoffs_of_policy(
    tree: GameTree, policies: Float[Array, "policies sets actions"], one: Int[Array, ""]
) -> list[Float[Array, "players ..."]]:
    """Return the expected payoffs of all profiles in which a player has policy `one`, for each player.

    The entry of a player has the shape of `compute_payoffs`, but 1 on the axis of this player.
    """
    alone, players = policies[one][None], range(tree.players)
    return [compute_payoffs(tree, [alone if other == player else policies for other in players]) for player in players]


def _mask_illegal(
    tree: GameTree, value: Float[Array, "some actions"], sets: np.ndarray
) -> Float[Array, "some actions"]:
    """Return the values of the actions, with -inf for illegal actions."""
    return jnp.where(tree.legal_mask[sets], value, -jnp.inf)
