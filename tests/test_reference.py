"""What a training says at its end, and what it compares itself with."""

import importlib
import json

import jax
import numpy as np
import pytest
import scipy.stats

from evorl.envs.sanity import Bandit
from evorl.envs.suites.gymnax import Gymnax
from evorl.metrics import RETURN_DOF, count_episodes, reduce_rounds
from evorl.training import random_baseline
from evorl.training.progress import Budget, Progress
from evorl.training.random_baseline import MeanReturn, compare_with_random, describe_outcome, get_random_return
from evorl.training.records.json_cache import JsonCache
from evorl.vector_env import EpisodeStats


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "evorl"


def test_the_error_of_a_mean_is_that_of_the_envs():
    stats = EpisodeStats(np.zeros(4, int), np.array([1, 2, 1, 0]), np.array([3.0, 8.0, 8.0, 7.0]), np.zeros(4, int))
    mean, of_envs, counts = 19 / 4, np.array([3, 4, 8]), np.array([1, 2, 1])
    variance = (counts * (of_envs - mean) ** 2).sum() / 2  # of an episode, of which an environment's mean has 1 / count
    assert float(stats.return_error) == pytest.approx(np.sqrt(variance / 4))
    assert np.isinf(EpisodeStats(np.zeros(1, int), np.ones(1, int), np.ones(1), np.ones(1, int)).return_error)


def test_the_error_is_that_of_the_mean_over_episodes_whatever_the_quotas():
    """Its square, on average, is the variance of what is reported: returns of variance 9 in 1, 1, 1 and 7 episodes."""
    rng, quotas = np.random.default_rng(0), np.array([1, 1, 1, 7])
    episodes = 3 * rng.standard_normal((4000, quotas.sum()))
    sums = np.add.reduceat(episodes, np.cumsum(quotas) - quotas, axis=1)
    none = np.zeros((4000, 4), int)
    stats = EpisodeStats(none, np.broadcast_to(quotas, (4000, 4)), sums, none, {}, none, none)
    squares = jax.vmap(lambda stats: stats.return_error**2)(stats)
    assert float(squares.mean()) == pytest.approx(episodes.mean(1).var(), rel=0.05)


def test_rounds_of_an_evaluation_are_one():
    first = {
        "return": np.float32(2),
        "return_error": np.float32(3),
        "episodes": np.int32(4),
        "members/return": np.ones(2),
    }
    second = {
        "return": np.float32(5),
        "return_error": np.float32(4),
        "episodes": np.int32(8),
        "members/return": np.zeros(2),
    }
    found = reduce_rounds([first, second])
    assert found["return"] == pytest.approx((2 * 4 + 5 * 8) / 12)
    assert (found["return_error"], found["episodes"]) == (pytest.approx(np.hypot(4 * 3, 8 * 4) / 12), 12)
    np.testing.assert_array_equal(found["members/return"], [0.5, 0.5])


def test_rounds_of_one_episode_each_have_the_error_of_their_mean():
    returns = np.array([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]])
    rounds = [{"return": x, "return_error": np.zeros(2), "episodes": np.ones(2, int)} for x in np.float32(returns)]
    np.testing.assert_allclose(reduce_rounds(rounds)["return_error"], scipy.stats.sem(returns))
    unknown = [one | {"return_error": np.full(2, np.inf), RETURN_DOF: np.zeros(2, int)} for one in rounds]
    found = reduce_rounds(unknown)
    np.testing.assert_allclose(found["return_error"], scipy.stats.sem(returns))
    np.testing.assert_array_equal(found[RETURN_DOF], [2, 2])


def test_a_round_where_no_episode_ended_adds_nothing():
    ended = {"return": np.float32(2), "return_error": np.float32(3), "episodes": np.int32(4), "restarts": np.int32(0)}
    cut = {
        "return": np.float32("nan"),
        "return_error": np.float32("inf"),
        "episodes": np.int32(0),
        "restarts": np.int32(4),
    }
    assert reduce_rounds([ended, cut]) == reduce_rounds([ended]) | {"restarts": 4}
    found = reduce_rounds([cut, cut])
    assert np.isnan(found["return"])
    assert (found["return_error"], found["episodes"]) == (np.inf, 0)
    assert count_episodes([ended, cut], 0) == 8


def test_an_edited_environment_is_played_again(cache, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "from evorl.envs.sanity import Bandit\nclass Mine(Bandit):\n    __repr__ = lambda self: 'Mine()'\n"
    found = []
    for name in ("mine_a", "mine_b"):  # two versions of a module, under one repr
        (tmp_path / f"{name}.py").write_text(text + f"# {name}\n")
        env = importlib.import_module(name).Mine(arms=3)
        found.append(random_baseline._hash_own_sources(env))
    assert found[0] != found[1]
    assert random_baseline._hash_own_sources(Bandit(arms=3)) == ""


def test_random_actions_are_played_once_and_remembered(cache, monkeypatch):
    env = Bandit(arms=7)  # which is not among those that evorl ships
    found = get_random_return(env)
    arms = env.action_space.n
    assert found.mean == pytest.approx(env.max_episode_steps / arms, abs=4 * np.sqrt(env.max_episode_steps / arms / 64))
    monkeypatch.setattr(random_baseline, "evaluate_random_policy", None)
    assert get_random_return(env) == found
    (cache / "random_returns.json").write_text("{")
    assert JsonCache("random_returns.json").get("anything") is None
    shipped = json.loads(random_baseline.BASELINES_FILE.read_text())
    assert shipped["Brax(name='ant', backend='generalized', max_episode_steps=1000, options=FrozenDict({}))"]
    assert shipped[repr(Gymnax("Breakout-MinAtar"))]


@pytest.mark.parametrize(
    ("low", "high", "judged"),
    [(5, 7, "the final return is better"), (-4, -3, "the final return is worse"), (0, 4, "no significant difference")],
)
def test_a_verdict_compares_intervals(low, high, judged, monkeypatch):
    monkeypatch.setattr(random_baseline, "get_random_return", lambda env: MeanReturn(1.0, -1.0, 3.0))
    first = {"env_steps": 10, "return": 0.5, "low": 0.0, "high": 1.0}
    last = {"env_steps": 2000, "return": (low + high) / 2, "low": low, "high": high}
    tested = {"env_steps": 2000, "return": 7.5, "low": 7.0, "high": 8.0}
    said = describe_outcome(
        Progress(initial_evaluation=first, latest_evaluation=last, best_returns=[8.0], best_reevaluation=tested),
        Bandit(),
    )
    than_before = judged.removeprefix("the final return is ")
    began = f"before training 0.5 [0, 1]: {than_before}; best policy in fresh episodes: 7.5 [7, 8]"
    assert said == f"final return {(low + high) / 2:.4g} [{low}, {high}] after 2,000 env steps; {began}"
    assert compare_with_random(MeanReturn.from_evaluation(last), Bandit()) == f"random policy: 1 [-1, 3]; {judged}"
    said = compare_with_random(MeanReturn.from_evaluation(last), Bandit(), random_exploitability=1.0)
    assert (
        said == f"random policy, minus its exploitability: -1; {'the final return is better' if low > -1 else judged}"
    )


def test_a_difference_is_that_of_two_means_at_the_95_percent_level():
    """As a z test of two means by their standard errors says; two intervals that overlap may still differ."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        (a, b), (u, v) = rng.normal(0, 3, 2), rng.uniform(0.1, 2, 2)
        z = (a - b) / np.hypot(u, v)
        said = MeanReturn(a, a - 1.96 * u, a + 1.96 * u).compare_with(MeanReturn(b, b - 1.96 * v, b + 1.96 * v))
        assert said == ("better" if z > 1.96 else "worse" if z < -1.96 else "no significant difference")
    assert MeanReturn(3.0, 2.0, 4.0).compare_with(MeanReturn(1.7, 0.7, 2.7)) == "no significant difference"
    assert MeanReturn(3.0, 2.0, 4.0).compare_with(MeanReturn(1.5, 0.5, 2.5)) == "better"
    assert MeanReturn(3.0, -np.inf, np.inf).compare_with(MeanReturn(1.0, 1.0, 1.0)) == "no significant difference"
    assert MeanReturn(3.0, 3.0, 3.0).compare_with(MeanReturn(3.0, 3.0, 3.0)) == "no significant difference"


def test_one_evaluation_is_told_once():
    only = {"env_steps": 10, "return": 0.5, "low": 0.0, "high": 1.0}
    assert (
        describe_outcome(Progress(initial_evaluation=only, latest_evaluation=dict(only)), Bandit())
        == "final return 0.5 [0, 1] after 10 env steps"
    )


def test_limits_are_those_that_end_it():
    assert Budget(minutes=3, env_steps=10).limits == {"env_steps": 10, "minutes": 3}
