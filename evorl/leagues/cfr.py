"""Counterfactual regret minimization (CFR)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.envs.games.game_tree import GameTree
from evorl.leagues.sequence_form import SequenceForm
from evorl.leagues.tabular_policies import normalize_policy


def cfr_plus(tree: GameTree, iterations: int | Int[Array, ""]) -> Float[Array, "sets actions"]:
    """Return the average policy of CFR+ (Tammelin 2014, arXiv:1407.5042).

    In a two-player zero-sum game, it approaches an equilibrium. The players are updated alternately, and the
    average weights the policy of iteration t by t.
    """
    form = SequenceForm.from_tree(tree)
    nothing = jnp.zeros(tree.legal_mask.shape)

    def update_regret(player: int, regret: Array) -> Array:
        policy = normalize_policy(tree, regret)
        value = form.apply_backward_induction(
            form.compute_counterfactual_payoffs(form.compute_realization_plan(policy)),
            lambda value, sets: (value * policy[sets]).sum(-1),
        )[1]
        gained = jnp.maximum(regret + value - (value * policy).sum(-1, keepdims=True), 0)
        return jnp.where(tree.legal_mask & (tree.owner == player)[:, None], gained, regret)

    def iteration(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        regret, total = carry
        total += t * form.to_table(form.compute_realization_plan(normalize_policy(tree, regret)))
        for player in range(tree.players):
            regret = update_regret(player, regret)
        return regret, total

    return normalize_policy(tree, jax.lax.fori_loop(1, 1 + iterations, iteration, (nothing, nothing))[1])
