"""Matrix games beside OpenSpiel's and by hand, and QMIX's two-step game."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import check_env
from evorl.envs.games import MatrixGame, TwoStep
from evorl.envs.games.payoffs import CLASSICS, get_classic_payoffs
from evorl.errors import OptionError
from evorl.spaces import Discrete, Members, groups
from evorl.training.configuration.discovery import find_choices
from evorl.training.configuration.parts import instantiate
from evorl.types import Env

THREE = np.arange(3 * 2 * 3 * 4, dtype=np.float32).reshape(3, 2, 3, 4)
KEY = jax.random.key(0)
OPEN_SPIEL = {  # load_matrix_game of open_spiel 2.0.2: the rows' payoffs, and the columns'
    "stag_hunt": ("sh", [[2, 0], [1, 1]], [[2, 1], [0, 1]]),
    "chicken": ("cd", [[0, 4], [1, 3]], [[0, 1], [4, 3]]),
    "matching_pennies": ("mp", [[1, -1], [-1, 1]], [[-1, 1], [1, -1]]),
    "rock_paper_scissors": ("rps", [[0, -1, 1], [1, 0, -1], [-1, 1, 0]], [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]),
    "battle_of_the_sexes": ("bos", [[3, 0], [0, 2]], [[2, 0], [0, 3]]),
    "coordination": ("coordination", [[1, 0], [0, 1]], [[1, 0], [0, 1]]),
    "shapley": ("shapleys_game", [[0, 0, 1], [1, 0, 0], [0, 1, 0]], [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
}


def pays(env, actions):
    action = {name: jnp.array(actions[who], jnp.int32) for name, who in env.player_groups.groups.items()}
    state, _ = env.reset(KEY, None)
    _, timestep = env.step(KEY, state, action, None)
    return np.concatenate([timestep.reward[name] for name in env.player_groups.groups]).tolist()


@pytest.mark.parametrize("name", OPEN_SPIEL)
def test_a_classic_is_that_of_open_spiel(name):
    kind, rows, columns = OPEN_SPIEL[name]
    np.testing.assert_array_equal(get_classic_payoffs(name), [rows, columns])
    pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    game = pyspiel.load_matrix_game(f"matrix_{kind}")
    np.testing.assert_array_equal(get_classic_payoffs(name), [game.row_utilities(), game.col_utilities()])


def test_the_other_classics_are_those_of_their_papers():
    assert set(CLASSICS) - set(OPEN_SPIEL) == {"prisoners_dilemma", "climbing", "penalty", "non_monotonic"}
    assert [pays(MatrixGame("prisoners_dilemma"), moves) for moves in ((0, 0), (0, 1), (1, 0), (1, 1))] == [
        [3, 3], [0, 5], [5, 0], [1, 1],
    ]  # fmt: skip
    for name, best, worst, safe in (("climbing", 11, -30, 5), ("penalty", 10, -100, 2), ("non_monotonic", 8, -12, 0)):
        rows, columns = get_classic_payoffs(name)
        np.testing.assert_array_equal(rows, columns)
        assert (rows.max(), rows.min(), rows[0, 0]) == (best, worst, best)
        assert rows[{"climbing": 2, "penalty": 1, "non_monotonic": 2}[name]].max() == safe


def test_any_tensor_is_paid():
    env = MatrixGame(payoffs=THREE.tolist())
    assert groups(env.action_space) == {f"player_{i}": Members(Discrete(n), 1) for i, n in enumerate((2, 3, 4))}
    for moves in itertools.product(range(2), range(3), range(4)):
        assert pays(env, moves) == THREE[(slice(None), *moves)].tolist()
    shared = MatrixGame(payoffs=((1, 2), (3, 4)), shared=True)
    assert [pays(shared, moves) for moves in ((0, 1), (1, 0))] == [[2, 2], [3, 3]]
    assert groups(shared.action_space) == {"player": Members(Discrete(2), 2)}
    alone = MatrixGame(payoffs=[[4, 5, 6]])
    assert pays(alone, (2,)) == [6]


def test_rounds_show_what_all_did_and_the_last_is_truncated():
    env = MatrixGame("prisoners_dilemma", rounds=2)
    state, obs = env.reset(KEY, None)
    assert jax.tree.map(lambda x: x.tolist(), obs) == {"player_0": [[0, 0, 0, 0]], "player_1": [[0, 0, 0, 0]]}
    action = {"player_0": jnp.array([0]), "player_1": jnp.array([1])}
    state, one = env.step(KEY, state, action, None)
    assert (one.obs["player_0"].tolist(), one.obs["player_1"].tolist()) == ([[1, 0, 0, 1]], [[0, 1, 1, 0]])
    state, two = env.step(KEY, state, action, None)
    ends = [(bool(t.terminated), bool(t.truncated)) for t in (one, two)]
    assert ends == [(False, False), (False, True)]
    once = MatrixGame("prisoners_dilemma")
    last = once.step(KEY, once.reset(KEY, None)[0], action, None)[1]
    assert (bool(last.terminated), bool(last.truncated)) == (True, False)


def test_the_two_step_game_is_that_of_the_paper():
    env = TwoStep()
    for first, ignored, a, b in itertools.product(range(2), repeat=4):
        state, obs = env.reset(KEY, None)
        assert obs["state"].tolist() == [1, 0, 0]
        state, one = env.step(KEY, state, {"agent": jnp.array([first, ignored])}, None)
        assert one.obs["agent"].tolist() == [[0, 1 - first, first]] * 2
        state, two = env.step(KEY, state, {"agent": jnp.array([a, b])}, None)
        paid = 7 if first == 0 else [[0, 1], [1, 8]][a][b]
        assert (one.reward["agent"].tolist(), two.reward["agent"].tolist()) == ([0, 0], [paid, paid])
        assert (bool(one.terminated), bool(two.terminated)) == (False, True)


@pytest.mark.parametrize(
    "env",
    [
        TwoStep(),
        MatrixGame("climbing", rounds=3),
        pytest.param(MatrixGame(payoffs=THREE.tolist()), marks=pytest.mark.program),
        pytest.param(MatrixGame("rock_paper_scissors", together=True), marks=pytest.mark.program),
    ],
)
def test_a_game_meets_the_protocol(env):
    check_env(env, episodes=2)


def by_name(**options):
    return instantiate(find_choices("env")["matrix"].read() | options, "env", Env)


def test_games_by_name():
    assert by_name() == MatrixGame("prisoners_dilemma")
    assert by_name(game="stag_hunt", rounds=5) == MatrixGame("stag_hunt", rounds=5)
    assert by_name(game="", payoffs=[[1, 2], [3, 4]], shared=True) == MatrixGame(payoffs=((1, 2), (3, 4)), shared=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"game": "stag_hunts"}, "unknown matrix game stag_hunts; did you mean stag_hunt?"),
        ({"game": ""}, 'env.game="": give either a name or payoffs'),
        ({"payoffs": [[1, 2], [3, 4]]}, "env.game=prisoners_dilemma: give either a name or payoffs"),
        ({"game": "", "payoffs": [[1, 2], [3, 4]]}, r"env.payoffs=shape \[2, 2\]: must be \[n, actions of player 0"),
        (
            {"game": "", "payoffs": [[1, 2], [3]]},
            r"env.payoffs=\(\(1, 2\), \(3,\)\): must be nested lists of numbers, with equal lengths",
        ),
        (
            {"game": "", "payoffs": THREE.tolist(), "together": True},
            "env.together=True: needs players with the same observation",
        ),
        ({"rounds": 0}, "env.rounds=0: must be at least 1"),
    ],
)
def test_mistakes_are_told_on_one_line(options, said):
    with pytest.raises(OptionError, match=f"^{said}") as told:
        by_name(**options)
    assert "\n" not in str(told.value)
