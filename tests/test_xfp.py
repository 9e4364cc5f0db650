"""Fictitious play in extensive form beside PSRO with even weights, and OpenSpiel 2.0.2's, which is recorded."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.leduc import Leduc
from evorl.envs.games.matrix import MatrixGame
from evorl.errors import OptionError
from evorl.leagues.exact import best_response
from evorl.leagues.oracles import BestResponseOracle
from evorl.leagues.psro import PSRO
from evorl.leagues.sequence_form import SequenceForm
from evorl.leagues.solvers import UniformMixture
from evorl.leagues.xfp import XFP
from evorl.training.policy import Policy

RECORDED = Path(__file__).parent / "recorded" / "xfp"  # by scripts/trust/xfp.py
GAMES = {"kuhn": ExtensiveFormGame(Kuhn()), "kuhn3": ExtensiveFormGame(Kuhn(3)), "leduc": ExtensiveFormGame(Leduc())}


def iterated(workflow, iterations, policy):
    """The state after so many iterations, and the policy and NashConv after each."""

    def step(state, key):
        state, metrics = workflow.step(state, key)
        return state, (policy(state), metrics["nash_conv"])

    keys = jax.random.split(jax.random.key(0), iterations)
    return jax.jit(lambda: jax.lax.scan(step, workflow.init(keys[0]), keys))()


@pytest.mark.program
@pytest.mark.parametrize("name", ["kuhn", "kuhn3"])
def test_it_is_psro_with_even_weights(name):
    """In as many iterations as float32 takes no other of two equal actions in one of them."""
    game, iterations = GAMES[name], 6
    psro = PSRO(game, BestResponseOracle(random_ties=False), UniformMixture(), capacity=iterations + 1)
    fsp = XFP(game)
    _, (wanted, nash_conv) = iterated(psro, iterations, psro.mixture)
    _, (found, found_conv) = iterated(fsp, iterations, fsp.average_strategy)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(found_conv, nash_conv, atol=1e-5)


@pytest.mark.program
def test_on_leduc_its_averages_are_those_of_open_spiel():
    wanted, fsp = np.load(RECORDED / "leduc.npz")["policies"], XFP(GAMES["leduc"])
    _, (found, _) = iterated(fsp, len(wanted), fsp.average_strategy)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.program
def test_on_kuhn_open_spiel_averages_best_responses_as_it_does():
    """Which of two equal actions it answers with OpenSpiel leaves to rounding, so that the policies go apart."""
    wanted, game = np.load(RECORDED / "kuhn.npz")["policies"], GAMES["kuhn"]
    fsp = XFP(game)
    _, (found, _) = iterated(fsp, 2, fsp.average_strategy)
    np.testing.assert_allclose(found, wanted[:2], atol=1e-6)
    tree = game.game_tree
    form = SequenceForm.from_tree(tree)
    counts = np.arange(2, 1 + len(wanted))[:, None]

    @jax.jit
    def earned(policies):
        plans = jax.vmap(form.compute_realization_plan)(policies)
        answers = (counts + 1) * plans[1:] - counts * plans[:-1]  # what the step averaged in
        own = jax.vmap(
            lambda before, answer: (form.compute_counterfactual_payoffs(before) * answer[form.end_sequences]).sum(1)
        )(plans[:-1], answers)
        return own, jax.vmap(lambda policy: best_response(tree, policy)[0])(policies[:-1])

    np.testing.assert_allclose(*earned(jnp.asarray(wanted)), atol=1e-5)


@pytest.mark.program
def test_it_comes_near_to_an_equilibrium_of_kuhn_poker_and_plays_it():
    fsp = XFP(GAMES["kuhn"])
    state, (_, nash_conv) = iterated(fsp, 1000, lambda _: ())
    assert nash_conv[0] == pytest.approx(0.625, abs=1e-5)  # OpenSpiel's
    assert nash_conv[-1] < 0.02
    evaluation = fsp.evaluate(state, jax.random.key(0))
    assert float(evaluation["return"]) == pytest.approx(-float(nash_conv[-1]) / 2, abs=1e-6)
    obs = fsp.env.reset(jax.random.key(5), None)[1]
    policy = Policy(fsp, state)
    actions, _ = policy(obs, policy.initial_memory())
    assert set(actions) == {"player_0", "player_1"}


def test_a_game_without_a_tree_is_refused():
    with pytest.raises(OptionError, match="env=MatrixGame: XFP needs a game tree"):
        XFP(MatrixGame("matching_pennies"))
