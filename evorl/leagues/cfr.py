"""Counterfactual regret minimization."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.envs.games.tree import GameTree
from evorl.leagues.sequences import SequenceForm
from evorl.leagues.tables import normalized


def cfr_plus(tree: GameTree, iterations: int | Int[Array, ""]) -> Float[Array, "sets actions"]:
    """The average policy of CFR+, which comes near an equilibrium of a zero-sum game of two (Tammelin 2014,
    arXiv:1407.5042).

    Players take turns; the policy of iteration t counts t times.
    """
    form = SequenceForm.of(tree)
    nothing = jnp.zeros(tree.legal.shape)

    def turn(player: int, regret: Array) -> Array:
        policy = normalized(tree, regret)
        value = form.backward(form.others(form.plan(policy)), lambda value, sets: (value * policy[sets]).sum(-1))[1]
        gained = jnp.maximum(regret + value - (value * policy).sum(-1, keepdims=True), 0)
        return jnp.where(tree.legal & (tree.owner == player)[:, None], gained, regret)

    def iteration(t: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        regret, total = carry
        total += t * form.table(form.plan(normalized(tree, regret)))
        for player in range(tree.players):
            regret = turn(player, regret)
        return regret, total

    return normalized(tree, jax.lax.fori_loop(1, 1 + iterations, iteration, (nothing, nothing))[1])
