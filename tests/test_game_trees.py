"""Kuhn and Leduc as OpenSpiel 2.0.2 has them, by what scripts/trust/game_trees.py recorded, and what a tree plays."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import check_env, render
from evorl.envs.games import ExtensiveFormGame, GameTree, Kuhn, Leduc, OpenSpiel
from evorl.envs.games.game_tree import compute_expected_payoffs, reach_probabilities
from evorl.envs.games.rules import CHANCE, TERMINAL
from evorl.envs.games.tree_builder import build_tree_arrays
from evorl.errors import OptionError
from evorl.spaces import random_action
from evorl.training import episodes
from evorl.training.configuration.discovery import find_choices
from evorl.training.configuration.parts import instantiate
from evorl.training.policy import Policy
from evorl.types import Env

RECORDED = Path(__file__).parent / "recorded" / "games"
GAMES = {"kuhn": Kuhn(), "kuhn3": Kuhn(3), "leduc": Leduc()}
NAMES = {"kuhn": "kuhn_poker", "kuhn3": "kuhn_poker(players=3)", "leduc": "leduc_poker"}


def walked(tree):
    """Nodes with their states, each before its children, smaller actions first."""
    stack = [(0, tree.rules.init_state())]
    while stack:
        node, state = stack.pop()
        yield node, state
        kids = range(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
        stack += [(kid, tree.rules.apply_action(state, int(tree.action[kid]))) for kid in reversed(kids)]


def in_order(tree):
    """Nodes, each before its children, smaller actions first."""
    stack, found = [0], []
    while stack:
        found.append(stack.pop())
        stack += range(tree.first_child[found[-1]], tree.first_child[found[-1]] + tree.num_children[found[-1]])[::-1]
    return np.array(found)


def compared(tree, wanted):
    nodes, moves = in_order(tree), tree.player >= 0
    assert sorted(nodes) == list(range(len(wanted["player"])))
    features = np.unpackbits(wanted["features"], axis=-1)[..., : tree.features.shape[1]]
    np.testing.assert_array_equal(tree.features[tree.information_rows[nodes]][moves[nodes]], features[moves[nodes]])
    for name, found in (("player", tree.player), ("payoffs", tree.payoffs), ("chance", tree.chance_prob)):
        np.testing.assert_array_equal(found[nodes], wanted[name])
    choices = np.bincount(tree.parent[1:], 2.0 ** tree.action[1:], len(nodes))
    np.testing.assert_array_equal(choices[nodes], wanted["choices"])
    np.testing.assert_array_equal(
        (tree.legal_mask @ 2 ** np.arange(tree.num_actions))[tree.information_sets[moves]], choices[moves]
    )


@pytest.mark.parametrize(
    ("name", "nodes", "sets", "width"), [("kuhn", 58, 12, 11), ("kuhn3", 617, 48, 17), ("leduc", 9457, 936, 30)]
)
def test_every_history_is_that_of_open_spiel(name, nodes, sets, width):
    tree = GameTree.from_game(GAMES[name])
    assert (len(tree.player), len(tree.legal_mask), tree.features.shape[1]) == (nodes, sets, width)
    compared(tree, np.load(RECORDED / f"{name}.npz"))


@pytest.mark.parametrize("name", ["kuhn", "kuhn3", pytest.param("leduc", marks=pytest.mark.program)])
def test_a_tree_of_open_spiel_is_the_same(name):
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    ours, theirs = build_tree_arrays(GAMES[name], 10_000), build_tree_arrays(OpenSpiel(NAMES[name]), 10_000)
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


def test_other_games_of_open_spiel_are_played():
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    goofspiel = ExtensiveFormGame("goofspiel(num_cards=4,imp_info=True,points_order=descending)")
    assert (len(goofspiel.game_tree.player), goofspiel.max_episode_steps) == (1077, 6)  # moves at once are two
    check_env(goofspiel, episodes=2)
    with pytest.raises(OptionError, match="tree=kuhn_pokr: Unknown game 'kuhn_pokr'"):
        ExtensiveFormGame("kuhn_pokr")
    with pytest.raises(OptionError, match="tree=pig: has no information state tensors"):
        ExtensiveFormGame("pig")


def expected(tree, policy):
    return jax.jit(partial(compute_expected_payoffs, tree))(policy)


def kuhns_equilibrium(tree, alpha):
    """Kuhn 1950: the first player bets jacks with alpha, kings with 3 alpha, and calls with queens with alpha + 1/3."""
    bets = {(0, ()): alpha, (1, ()): 0, (2, ()): 3 * alpha, (0, (0, 1)): 0, (1, (0, 1)): alpha + 1 / 3, (2, (0, 1)): 1}
    bets |= {(0, (0,)): 1 / 3, (1, (0,)): 0, (2, (0,)): 1, (0, (1,)): 0, (1, (1,)): 1 / 3, (2, (1,)): 1}
    policy = np.zeros((12, 2), np.float32)
    for node, state in walked(tree):
        if (player := tree.player[node]) >= 0:
            bet = bets[state.cards[player], state.bets]
            policy[tree.information_sets[node]] = 1 - bet, bet
    return policy


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_the_value_of_kuhn_is_that_of_the_paper(alpha):
    tree = GameTree.from_game(Kuhn())
    np.testing.assert_allclose(expected(tree, kuhns_equilibrium(tree, alpha)), [-1 / 18, 1 / 18], atol=1e-6)


def backward(tree, policy):
    """Values by recursion from the end, in NumPy."""
    worth = tree.payoffs.astype(float)
    for node in range(len(tree.player))[::-1]:
        kids = np.arange(tree.first_child[node], tree.first_child[node] + tree.num_children[node])
        if len(kids):
            chosen = (
                tree.chance_prob[kids]
                if tree.player[node] == CHANCE
                else policy[tree.information_sets[node], tree.action[kids]]
            )
            worth[node] = chosen @ worth[kids]
    return worth


@pytest.mark.parametrize("name", GAMES)
def test_values_are_those_of_backward_induction(name):
    tree, rng = GameTree.from_game(GAMES[name]), np.random.default_rng(0)
    policy = np.where(tree.legal_mask, rng.random(tree.legal_mask.shape), 0)
    policy /= policy.sum(1, keepdims=True)
    worth = backward(tree, policy)
    np.testing.assert_allclose(expected(tree, np.float32(policy)), worth[0], atol=1e-5)
    likely = np.asarray(jax.jit(partial(reach_probabilities, tree))(np.float32(policy)).prod(0))
    assert likely[tree.player == TERMINAL].sum() == pytest.approx(1, abs=1e-5)
    chosen = policy[tree.information_sets[tree.parent], np.minimum(tree.action, tree.num_actions - 1)]
    step = np.where(tree.player[tree.parent] == CHANCE, tree.chance_prob, chosen)
    below, chances = np.zeros((1, tree.players)), np.zeros(1)
    for level in reversed(range(len(tree.level_offsets) - 1)):  # children by padded gather
        nodes, kids = tree.level_slice(level), tree.child_positions(level)
        found = tree.payoffs[nodes] + (chances[kids][..., None] * below[kids]).sum(1)
        np.testing.assert_allclose(found, worth[nodes], atol=1e-5)
        below, chances = np.append(found, np.zeros((1, tree.players)), 0), np.append(step[nodes], 0)
    uniform = np.float32(tree.legal_mask / tree.legal_mask.sum(1, keepdims=True))
    wanted = {"kuhn": [0.125, -0.125], "kuhn3": [0.234375, -0.046875, -0.1875], "leduc": [-0.078125, 0.078125]}
    np.testing.assert_allclose(expected(tree, uniform), wanted[name], atol=1e-5)  # open_spiel's policy_value


EPISODES = 8192


@pytest.mark.parametrize("env", [ExtensiveFormGame(Kuhn(3)), ExtensiveFormGame(Leduc(), together=True)], ids=repr)
def test_what_is_played_is_the_tree(env):
    tree = env.game_tree

    def episode(key):
        def step(carry, key):
            state, obs = carry
            key_action, key_step = jax.random.split(key)
            action = random_action(env.action_space, env.observation_space, obs, key_action)
            after, timestep = env.step(key_step, state, action, None)
            return (after, timestep.obs), (state.node, obs, env.player_groups.concatenate(action), after.node, timestep)

        key, *keys = jax.random.split(key, 1 + env.max_episode_steps)
        return jax.lax.scan(step, env.reset(key, None), jnp.stack(keys))[1]

    keys = jax.random.split(jax.random.key(0), EPISODES)
    nodes, obs, actions, after, timesteps = jax.device_get(jax.jit(jax.vmap(episode))(keys))
    over = np.asarray(timesteps.terminated)
    assert over[:, -1].all()
    assert not np.asarray(timesteps.truncated).any()
    playing = np.cumsum(over, 1) - over == 0
    joined = {
        part: np.concatenate([obs[name][part] for name in env.player_groups.groups], 2) for part in ("obs", "legal")
    }
    reward = np.concatenate([timesteps.reward[name] for name in env.player_groups.groups], 2)
    movers = tree.player[nodes[playing]]
    alone = joined["legal"][playing].sum(-1)
    assert (np.delete(alone, movers[0], 1)[movers == movers[0]] == 1).all()
    np.testing.assert_array_equal(joined["obs"][playing], tree.features[tree.information_rows[nodes[playing]]])
    legal = np.take_along_axis(joined["legal"][playing], movers[:, None, None], 1)[:, 0]
    np.testing.assert_array_equal(legal, tree.legal_mask[tree.information_sets[nodes[playing]]])
    for node, action, to in zip(nodes[playing][:3000], actions[playing][:3000], after[playing][:3000], strict=True):
        moves = tree.history(int(node))
        way = tree.history(int(to))
        assert way[: len(moves) + 1] == [*moves, action[tree.player[node]]]
        assert tree.player[to] == TERMINAL or tree.player[to] >= 0
    np.testing.assert_array_equal(reward[playing], tree.payoffs[after[playing]])
    starts = np.unique(nodes[:, 0], return_counts=True)[1]  # deals, all as likely
    assert len(starts) == {3: 24, 2: 30}[tree.players]
    chi_square = ((starts - EPISODES / len(starts)) ** 2).sum() * len(starts) / EPISODES
    assert chi_square < len(starts) + 4 * np.sqrt(2 * len(starts))
    returns = (reward * playing[..., None]).sum(1)
    wanted = {3: [0.234375, -0.046875, -0.1875], 2: [-0.078125, 0.078125]}[tree.players]
    assert (np.abs(returns.mean(0) - wanted) < 4 * returns.std(0) / np.sqrt(EPISODES)).all()


def test_an_illegal_action_is_the_first_legal_one():
    env = ExtensiveFormGame(Leduc())
    state, obs = env.reset(jax.random.key(0), None)
    assert obs["player_0"]["legal"].tolist() == [[False, True, True]]
    assert obs["player_1"]["legal"].tolist() == [[True, False, False]]
    fold, call, bet = ({"player_0": x, "player_1": x} for x in jnp.arange(3)[:, None])
    afters = [int(env.step(jax.random.key(1), state, action, None)[0].node) for action in (fold, call, bet)]
    assert afters[0] == afters[1] != afters[2]


@pytest.mark.program
@pytest.mark.parametrize("name", ["kuhn", "leduc"])
@pytest.mark.parametrize("together", [False, True])
def test_a_tree_meets_the_protocol(name, together):
    check_env(ExtensiveFormGame(GAMES[name], together), episodes=2)


def test_a_game_is_told_in_pictures(tmp_path):
    env = ExtensiveFormGame(Leduc())
    tree = env.game_tree
    deep = len(tree.player) - 1
    assert tree.format_node(deep).splitlines() == [
        "player 0: K", "player 1: K", "both: Q", "pot: 26", "0 calls, 1 raises, 0 raises, 1 calls",
        "0 calls, 1 raises, 0 raises, 1 calls", "player 0 gets 0", "player 1 gets 0",
    ]  # fmt: skip
    states = [env.reset(jax.random.key(0), None)[0].replace(node=node) for node in (0, deep)]
    gif, png, *_ = render.save_episode(env, states, tmp_path)
    assert (gif.name, png.name) == ("episode.gif", "episode.png")
    assert png.stat().st_size > 500


@dataclass(frozen=True)
class Noted(ExtensiveFormGame):
    """Writes down the nodes that it is to draw."""

    render_fps = None

    def draw(self, states, folder):
        path = folder / "nodes"
        path.write_text(" ".join(str(int(state.node)) for state in states))
        return [path]


def test_pictures_are_of_a_whole_game_with_its_end(tmp_path):
    env = Noted(Kuhn())

    def act(obs, memory, key):
        return random_action(env.action_space, env.observation_space, obs, key), memory, {}

    policy = object.__new__(Policy)
    vars(policy).update(env=env, env_params=None, memory=None, _modes={False: act})
    (path,) = episodes.draw_episode(policy, tmp_path)
    nodes = list(map(int, path.read_text().split()))
    tree = env.game_tree
    assert [len(tree.history(node)) for node in nodes] == list(range(2, 2 + len(nodes)))
    assert [tree.player[node] for node in nodes] == [*[0, 1, 0][: len(nodes) - 1], TERMINAL]
    assert tree.parent[nodes[1:]].tolist() == nodes[:-1]


def by_name(name, **tree):
    node = find_choices("env")[name].read()
    return instantiate(node | {"tree": node["tree"] | tree if tree else node["tree"]}, "env", Env)


def test_games_by_name():
    assert [by_name("kuhn"), by_name("leduc")] == [ExtensiveFormGame(Kuhn()), ExtensiveFormGame(Leduc())]
    assert by_name("kuhn", players=3).game_tree.players == 3
    with pytest.raises(OptionError, match=r"^env.tree.players=1: must be from 2 to 10$"):
        by_name("kuhn", players=1)
    with pytest.raises(OptionError, match=r"^env.tree: must be given$"):
        by_name("open_spiel")


@dataclass(frozen=True)
class Odd(Kuhn):
    """Kuhn with a mistake."""

    mistake: str = ""

    def legal_actions(self, state):
        if len(state.bets) == 1 and self.mistake == "none":
            return []
        if self.mistake == "high":
            return [0, 2]
        return [0, 1] if self.mistake != "uneven" or state.cards != (0, 1) else [0]

    def chance_outcomes(self, state):
        return super().chance_outcomes(state)[self.mistake == "chance" :]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ExtensiveFormGame(Kuhn(), limit=57), r"limit=57: the game tree of Kuhn\(players=2\) has more nodes"),
        (
            lambda: ExtensiveFormGame(Odd(mistake="none")),
            "player 1 has no legal action at 'player 0: J player 1: Q pot: 2 0 p",
        ),
        (lambda: ExtensiveFormGame(Odd(mistake="high")), r"legal actions=\[0, 2\]: must be from 0 to 1 for "),
        (
            lambda: ExtensiveFormGame(Odd(mistake="uneven")),
            r"legal actions=\[0, 1\]: must be \[0\], as elsewhere in the same info",
        ),
        (lambda: ExtensiveFormGame(Odd(mistake="chance")), "chance probabilities do not sum to 1 at 'pot: 2'"),
    ],
)
def test_mistakes_are_told_on_one_line(make, said):
    with pytest.raises(OptionError, match=said) as told:
        make()
    assert "\n" not in str(told.value)
