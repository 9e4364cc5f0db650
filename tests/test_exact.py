"""Exact values of policies beside OpenSpiel 2.0.2's, which scripts/trust/exact.py recorded, and beside brute force."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import PPO
from evorl.agents.base_agent import fill_spaces
from evorl.agents.dqn import DQN
from evorl.agents.group_agent import member_spaces
from evorl.agents.mlp_policy import MLPPolicy
from evorl.agents.random import Random
from evorl.agents.team import Team
from evorl.envs.games import ExtensiveFormGame, GameTree, Goofspiel, Kuhn, Leduc, LiarsDice, OpenSpiel
from evorl.envs.games.game_tree import compute_expected_payoffs, reach_probabilities
from evorl.errors import OptionError
from evorl.leagues.cfr import cfr_plus
from evorl.leagues.exact import best_response, compute_payoffs, exploitability, mix_policies, nash_conv
from evorl.leagues.tabular_policies import make_uniform_policy, tabulate_agent, tabulate_policy
from evorl.networks.recurrent import GRU

RECORDED = Path(__file__).parent / "recorded" / "exact"
GAMES = {
    "kuhn": Kuhn(),
    "kuhn3": Kuhn(3),
    "leduc": Leduc(),
    "goofspiel": Goofspiel(4),
    "goofspiel_seen": Goofspiel(4, imp_info=False, returns_type="point_difference"),
    "goofspiel3": Goofspiel(3, players=3, points_order="random", returns_type="total_points"),
    "liars_dice": LiarsDice(dice_sides=3),
}
LARGE = [pytest.param(name, marks=pytest.mark.program) for name in ("leduc", "goofspiel3")]


def drawn(tree, *shape, seed=0):
    """Random policies, [*shape, sets, actions]."""
    policy = np.where(tree.legal_mask, np.random.default_rng(seed).random((*shape, *tree.legal_mask.shape)), 0)
    return jnp.asarray(policy / policy.sum(-1, keepdims=True), jnp.float32)


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (Kuhn(), 0.916667),
        (Kuhn(3), 2.0625),
        (Leduc(), 4.747222),
        (Goofspiel(4), 1.416667),
        (Goofspiel(4, imp_info=False), 1.5),
        (Goofspiel(4, imp_info=False, returns_type="point_difference"), 2.5),
        (LiarsDice(dice_sides=3), 1.111111),
    ],
    ids=repr,
)
def test_nash_conv_of_uniform_play(rules, wanted):
    tree = GameTree.from_game(rules)
    found = jax.jit(lambda policy: (nash_conv(tree, policy), exploitability(tree, policy)))(make_uniform_policy(tree))
    np.testing.assert_allclose(found, [wanted, wanted / tree.players], atol=1e-5)


@pytest.mark.parametrize("name", ["kuhn3", "goofspiel", "goofspiel_seen", "liars_dice", *LARGE])
def test_best_responses_to_random_policies_are_those_of_open_spiel(name):
    tree, recorded = GameTree.from_game(GAMES[name]), np.load(RECORDED / f"{name}.npz")
    best, _ = jax.jit(jax.vmap(lambda policy: best_response(tree, policy)))(jnp.asarray(recorded["policies"]))
    np.testing.assert_allclose(best, recorded["best"], atol=1e-5)
    conv = jax.jit(jax.vmap(lambda policy: nash_conv(tree, policy)))(jnp.asarray(recorded["policies"]))
    np.testing.assert_allclose(conv, recorded["nash_conv"], atol=1e-5)


ITERATED = [pytest.param(name, marks=pytest.mark.program) for name in ("kuhn3", "goofspiel", "liars_dice", "leduc")]


@pytest.mark.parametrize("name", ["kuhn", *ITERATED])
def test_cfr_plus_comes_as_near_to_an_equilibrium_as_that_of_open_spiel(name):
    tree, wanted = GameTree.from_game(GAMES[name]), np.load(RECORDED / f"{name}.npz")["cfr_plus"]
    after = jax.jit(lambda iterations: nash_conv(tree, cfr_plus(tree, iterations)))
    np.testing.assert_allclose([after(t) for t in (10, 100)[: len(wanted)]], wanted, atol=1e-5)


NAMES = {
    "goofspiel": "goofspiel(num_cards=4,points_order=descending,imp_info=True)",
    "goofspiel_seen": "goofspiel(num_cards=4,points_order=descending,returns_type=point_difference)",
    "goofspiel3": "goofspiel(players=3,num_cards=3,imp_info=True,returns_type=total_points)",
    "liars_dice": "liars_dice(dice_sides=3)",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_history_is_that_of_open_spiel(name):
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    ours, theirs = GameTree.from_game(GAMES[name]), GameTree.from_game(OpenSpiel(NAMES[name]))
    names = ("player", "parent", "action", "chance_prob", "payoffs")
    for key in (*names, *(("information_sets",) if name != "goofspiel_seen" else ())):
        np.testing.assert_allclose(getattr(ours, key), getattr(theirs, key), atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["kuhn", pytest.param("kuhn3", marks=pytest.mark.program)])
def test_a_best_response_is_the_best_of_all(name):
    tree, policy = GameTree.from_game(GAMES[name]), drawn(GameTree.from_game(GAMES[name]))
    best, table = jax.jit(lambda policy: best_response(tree, policy))(policy)
    np.testing.assert_array_equal(table.sum(1), 1)
    many = jax.jit(jax.vmap(lambda x: compute_expected_payoffs(tree, x)))
    for player in range(tree.players):
        own = tree.owner == player
        against = jnp.where(own[:, None], table, policy)
        np.testing.assert_allclose(compute_expected_payoffs(tree, against)[player], best[player], atol=1e-6)
        every = np.array(list(product(range(2), repeat=own.sum() if tree.players == 2 else 4)))
        first = np.flatnonzero(own)[: every.shape[1]]  # all its pure policies, or all that differ in four sets
        tables = np.tile(against, (len(every), 1, 1))
        tables[:, first] = np.eye(2)[every]
        gained = many(jnp.asarray(tables))[:, player]
        np.testing.assert_allclose(gained.max(), best[player], atol=1e-6)


@pytest.mark.program
def test_of_actions_that_are_worth_the_same_it_takes_the_first_or_the_one_that_is_preferred():
    tree = GameTree.from_game(Leduc())
    folds = jnp.asarray(np.eye(3)[tree.legal_mask.argmax(1)], jnp.float32)
    of = jax.jit(lambda ties: best_response(tree, folds, ties))
    (best, first), (again, last) = of(None), of(jnp.tile(jnp.arange(3.0), (936, 1)))
    value = jax.jit(lambda policy: compute_expected_payoffs(tree, policy))
    np.testing.assert_array_equal(best, again)
    for player in range(2):
        for table in (first, last):
            found = value(jnp.where((tree.owner == player)[:, None], table, folds))
            np.testing.assert_allclose(found[player], best[player], atol=1e-5)
    never = np.asarray(reach_probabilities(tree, folds).prod(0)) == 0
    unseen = np.setdiff1d(np.arange(936), tree.information_sets[(tree.player >= 0) & ~never])
    unseen = [row for row in unseen if (first[row] != last[row]).any()]
    assert len(unseen) > 500
    np.testing.assert_array_equal(first[np.array(unseen)].argmax(1), tree.legal_mask[unseen].argmax(1))
    np.testing.assert_array_equal(last[np.array(unseen)].argmax(1), 2 - tree.legal_mask[unseen][:, ::-1].argmax(1))


@pytest.mark.program
@pytest.mark.parametrize("name", ["kuhn", "kuhn3"])
def test_a_mixture_is_worth_what_its_policies_are_worth_on_average(name):
    tree = GameTree.from_game(GAMES[name])
    policies, weights = drawn(tree, 3), np.random.default_rng(1).dirichlet(np.ones(3), tree.players)
    table = compute_payoffs(tree, policies)
    assert table.shape == (tree.players, *(3,) * tree.players)
    value = jax.jit(lambda policy: compute_expected_payoffs(tree, policy))
    for profile in product(range(3), repeat=tree.players):
        joint = jnp.stack([policies[profile[player], i] for i, player in enumerate(tree.owner)])
        np.testing.assert_allclose(table[(slice(None), *profile)], value(joint), atol=1e-6)
    mixed = mix_policies(tree, policies, jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(mixed.sum(1), 1, atol=1e-6)
    wanted = np.asarray(table, float)
    for own in weights[::-1]:
        wanted = wanted @ own
    np.testing.assert_allclose(value(mixed), wanted, atol=1e-6)
    new = compute_payoffs(tree, [policies[2:], *[policies] * (tree.players - 1)])
    np.testing.assert_allclose(new, table[:, 2:], atol=1e-6)


def test_a_mixture_is_uniform_where_none_of_its_policies_comes():
    tree = GameTree.from_game(Kuhn())
    passes = jnp.tile(jnp.array([1.0, 0.0]), (12, 1))
    mixed = mix_policies(tree, jnp.stack([passes, passes]), jnp.full((2, 2), 0.5))
    np.testing.assert_array_equal(mixed, passes)  # the first player passes before it is bet against
    bets = mix_policies(tree, (1 - passes)[None], jnp.ones((2, 1)))
    twice = [
        row for row in range(12) if row in set(tree.information_sets[[len(tree.history(n)) == 4 for n in range(58)]])
    ]
    np.testing.assert_array_equal(bets[np.array(twice)], 0.5)
    np.testing.assert_array_equal(np.delete(bets, twice, 0)[:, 1], 1)


@dataclass(frozen=True)
class Forgetful(Kuhn):
    """Kuhn whose players no longer know their card after a bet."""

    def information_state(self, state, player):
        card, bets = super().information_state(state, player)
        return (card if len(bets) < 2 else ()), bets


def test_a_player_who_forgets_has_no_exact_values():
    tree = GameTree.from_game(Forgetful())
    with pytest.raises(OptionError, match="player 0 has imperfect recall at 'player 0: Q") as told:
        nash_conv(tree, make_uniform_policy(tree))
    assert "\n" not in str(told.value)


@dataclass(frozen=True)
class Nearsighted(Kuhn):
    """Kuhn whose players observe their seat and card, but no bets."""

    def features(self, state, player):
        return super().features(state, player)[:5]


def test_information_sets_that_players_observe_alike_are_refused():
    """Otherwise, play would look up another policy than the exact values are of."""
    with pytest.raises(OptionError, match=r"features\(state, player\) must differ between information sets") as told:
        GameTree.from_game(Nearsighted())
    assert "\n" not in str(told.value)


@pytest.mark.program
def test_what_agents_play_as_a_table():
    tree = GameTree.from_game(Kuhn())
    env = ExtensiveFormGame(tree)
    spaces = member_spaces(env.observation_space, env.action_space)
    obs = {"obs": jnp.asarray(tree.features[5]), "legal": jnp.asarray(tree.legal_mask[5])}
    for agent in (
        PPO(hidden=(8,), observation_space=spaces[0], action_space=spaces[1]),
        MLPPolicy(observation_space=spaces[0], action_space=spaces[1]),
        DQN(hidden=(8,), epsilon=0.5, observation_space=spaces[0], action_space=spaces[1]),
        Random(observation_space=spaces[0], action_space=spaces[1]),
    ):
        params = agent.init(jax.random.key(0)).actor.params
        table = tabulate_agent(tree, agent, params)
        keys = jax.random.split(jax.random.key(1), 4000)
        acts = jax.vmap(lambda key, a=agent, p=params: a.act(p, obs, None, key)[0])(keys)
        np.testing.assert_allclose(acts.mean(), table[5, 1], atol=4 * 0.5 / 4000**0.5)
        if not isinstance(agent, Random):
            greedy = tabulate_agent(tree, agent, params, greedy=True)
            mode = agent.mode(params, obs, None, keys[0])[0]
            assert greedy[5].tolist() == [1 - mode, mode]
        else:
            np.testing.assert_array_equal(tabulate_agent(tree, agent, params, greedy=True), make_uniform_policy(tree))
    np.testing.assert_array_equal(
        tabulate_policy(tree, lambda obs: obs["legal"] / obs["legal"].sum()), make_uniform_policy(tree)
    )
    with pytest.raises(OptionError, match="agent=MLPPolicy: is recurrent"):
        tabulate_agent(tree, MLPPolicy(core=GRU(4), observation_space=spaces[0], action_space=spaces[1]), ())


@pytest.mark.parametrize("together", [False, True])
def test_a_team_plays_a_row_for_each_of_its_members(together):
    tree = GameTree.from_game(Kuhn())
    env = ExtensiveFormGame(tree, together)
    team = fill_spaces(Team(MLPPolicy(), obs_agent_id=True), env)
    params = jax.jit(team.init)(jax.random.key(0)).actor.params
    table, greedy = (jax.jit(partial(tabulate_agent, tree, team, greedy=greedy))(params) for greedy in (False, True))
    np.testing.assert_array_equal(table.argmax(1), greedy.argmax(1))
    for row in (0, 7):
        player = int(tree.owner[row])
        name, member = ("player", player) if together else (f"player_{player}", 0)
        own = {"obs": jnp.asarray(tree.features[row])} | ({"id": jnp.int32(member)} if together else {})
        agent = team.group_agents[name].agent
        logits = agent.distribution(params[name], {"obs": own, "legal": jnp.asarray(tree.legal_mask[row])}, ())[
            0
        ].logits
        np.testing.assert_allclose(table[row], jax.nn.softmax(logits), atol=1e-6)


def spaces(env):
    return env.observation_space, env.action_space
