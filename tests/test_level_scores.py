"""Scores of levels are those of their equations, over ended episodes alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy
from evorl.agents import PPO
from evorl.envs.maze import Maze, RandomWalls
from evorl.errors import OptionError
from evorl.types import Batch, Transition
from evorl.ued import curricula, episodes, scores
from evorl.ued.scores import Outcome

NAN = float("nan")
# environment 0 has episodes of 2, 1 and 2 steps, of which the last has not ended; 1 has one of 4; 2 ends none
ENDED = jnp.array([[0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
REWARD = jnp.array([[1.0, -1.0, 5.0], [2.0, -1.0, 5.0], [-4.0, -1.0, 5.0], [9.0, -2.0, 5.0], [9.0, 9.0, 5.0]])
VALUE = jnp.array([[4.0, 1.0, 7.0], [2.0, 2.0, 7.0], [-1.0, 3.0, 7.0], [8.0, 6.0, 7.0], [8.0, 8.0, 7.0]])
ADVANTAGE = jnp.array([[2.0, -1.0, 1.0], [-4.0, 2.0, 1.0], [3.0, 4.0, 1.0], [9.0, -7.0, 1.0], [9.0, 9.0, 1.0]])


def outcome(**fields):
    best = jnp.array([-jnp.inf, -2.0, 1.0])
    return Outcome(REWARD, ENDED, VALUE, ADVANTAGE, best, **fields)


@pytest.mark.parametrize(("score", "wanted"), [
    (scores.MaxMC(), [3 - (3 - 1) / 2, -2 - 3, NAN]),  # the second played better before than now, but never above 0
    (scores.PositiveValueLoss(), [(1 + 3) / 2, (2 + 4) / 4, NAN]),
    (scores.L1ValueLoss(), [(3 + 3) / 2, 14 / 4, NAN]),
    (scores.NegativeReturn(), [-(3 - 4) / 2, 5, NAN]),
    (scores.TrueRegret(), [8 - (3 - 4) / 2, 0 + 5, NAN]),
    (scores.Learnability(), [0.5 * 0.5, 0, NAN]),
    (scores.ValueDisagreement(), [((2 + 1) / 2 + 0.5) / 2, (0.5 + 1 + 1.5 + 3) / 4, NAN]),
])  # fmt: skip
def test_scores_by_hand(score, wanted):
    solved = jnp.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
    values = jnp.stack([VALUE, 2 * VALUE])  # whose standard deviation is half the value's size
    given = outcome(solved=solved, values=values, optimum=jnp.array([8.0, 0.0, 1.0]), guaranteed_episodes=2)
    np.testing.assert_allclose(jax.jit(score)(given), wanted, rtol=1e-6)


def test_a_level_with_a_lost_step_has_no_learnability():
    """The step before the lost one is the end of an episode, which was not solved."""
    solved = jnp.zeros((5, 3), bool).at[1, 0].set(True)
    given = outcome(solved=solved, guaranteed_episodes=2)
    assert np.isfinite(scores.Learnability()(given))[:2].all()
    lost = given.replace(reward=REWARD.at[2, 0].set(jnp.nan))
    assert np.isnan(scores.Learnability()(lost)).tolist() == [True, False, True]


def test_a_maximum_of_the_last_rollout_or_from_zero_is_another_one():
    """minimax keeps that of the last rollout, and begins at 0."""
    given, time_mean = outcome(), np.array([1.0, 3.0])
    found = np.asarray(jax.jit(scores.MaxMC())(given))[:2]
    highest = np.asarray(given.highest_return)[:2]
    assert (np.abs(found - (highest - time_mean)) > 0.1).any()
    assert (np.abs(found - (np.maximum(highest, 0) - time_mean)) > 0.1).any()


@pytest.mark.program
def test_several_envs_of_a_level_count_their_episodes_alike():
    """Levels of two environments: of three episodes, of which environment 0 has two, and of none."""
    join = lambda x: jnp.concatenate([x[:, :2], x[:, 2:], x[:, 2:]], 1)  # noqa: E731
    given = Outcome(join(REWARD), join(ENDED), join(VALUE), join(ADVANTAGE), jnp.array([-7.0, 0.0]), repeats=2)
    np.testing.assert_allclose(given.mean_return, [(3 - 4 - 5) / 3, NAN], rtol=1e-6)
    np.testing.assert_allclose(given.highest_return, [3, -np.inf])
    np.testing.assert_allclose(jax.jit(scores.MaxMC())(given), [3 - (3 - 1 + 3) / 3, NAN], rtol=1e-6)


def test_regrets_compare_students():
    """Student 0 is the protagonist; the antagonists' highest counts, of the population the highest mean."""
    other = jnp.array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [3.0, 2.0, 0.0], [0.0, 3.0, 0.0], [9.0, 9.0, 0.0]])
    given = Outcome(jnp.stack([REWARD, other, -other]), jnp.stack([ENDED] * 3))
    means = np.array([[(3 - 4) / 2, -5], [(2 + 3) / 2, 9], [-(2 + 3) / 2, -9]])
    regret = [3 - means[0, 0], 9 - means[0, 1], NAN]
    np.testing.assert_allclose(jax.jit(scores.RelativeRegret())(given), regret, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(scores.PopulationRegret())(given), [*(means.max(0) - means.mean(0)), NAN], rtol=1e-6
    )
    worse = Outcome(jnp.stack([REWARD, REWARD - 9]), jnp.stack([ENDED] * 2))
    np.testing.assert_array_equal(jax.jit(scores.RelativeRegret())(worse)[:2], [0, 0])
    silent = Outcome(jnp.stack([REWARD, REWARD]), jnp.stack([ENDED, jnp.zeros_like(ENDED)]))
    assert np.isnan(jax.jit(scores.RelativeRegret())(silent)).all()
    assert np.isnan(jax.jit(scores.PopulationRegret())(silent)).all()


def by_hand(x, ended, reward, repeats):
    """Time-means, mean and highest returns of levels, and the share that end with x > 0, walking along environments."""
    num_envs = ended.shape[1]
    found = [([], [], []) for _ in range(num_envs // repeats)]
    for index in range(num_envs):
        begin = 0
        for end in np.flatnonzero(ended[:, index]):
            episode = slice(begin, end + 1)
            numbers = x[episode, index].mean(), reward[episode, index].sum(), x[end, index] > 0
            for each, number in zip(found[index // repeats], numbers, strict=True):
                each.append(number)
            begin = end + 1
    mean = lambda x: np.mean(x) if x else NAN  # noqa: E731
    return [(mean(times), mean(returns), max(returns, default=-np.inf), mean(above)) for times, returns, above in found]


@pytest.mark.parametrize("repeats", [1, 4])
def test_random_rollouts_are_as_walked_along(repeats):
    random = np.random.default_rng(repeats)
    steps, num_envs = 37, 24
    ended = random.random((steps, num_envs)) < np.where(np.arange(num_envs) < 8, 0.02, 0.3)
    x, reward = random.normal(size=(2, steps, num_envs)).astype(np.float32)
    time_mean, mean_return, highest, rate = np.array(by_hand(x.astype(float), ended, reward.astype(float), repeats)).T
    assert repeats > 1 or 0 < np.isnan(time_mean).sum() < 8
    over = jnp.asarray(ended), repeats
    highest_return = jax.jit(episodes.highest_return, static_argnums=2)
    np.testing.assert_allclose(episodes.time_mean(jnp.asarray(x), *over), time_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(episodes.mean_return(jnp.asarray(reward), *over), mean_return, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(highest_return(jnp.asarray(reward), *over), highest, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(episodes.event_rate(jnp.asarray(x > 0), *over), rate, rtol=1e-6)


def test_what_did_not_end_may_hold_anything():
    wild = jnp.where(jnp.cumsum(ENDED[::-1], 0)[::-1] > 0, VALUE, jnp.nan)
    np.testing.assert_array_equal(episodes.time_mean(wild, ENDED), episodes.time_mean(VALUE, ENDED))
    np.testing.assert_array_equal(episodes.mean_return(wild, ENDED), episodes.mean_return(VALUE, ENDED))


def test_every_score_is_one():
    for name in ("MaxMC", "PositiveValueLoss", "L1ValueLoss", "ValueDisagreement", "NegativeReturn", "Learnability",
                 "TrueRegret", "RelativeRegret", "PopulationRegret"):  # fmt: skip
        score = getattr(scores, name)()
        assert isinstance(score, scores.Score)
        assert set(score.outcome_fields) <= set(Outcome.__dataclass_fields__)
        scores.check_score(score, "rank", Outcome.__dataclass_fields__, 2, 2)


@pytest.mark.parametrize(("score", "prioritization", "gives", "students", "message"), [
    (scores.TrueRegret(), "rank", ("value", "best"), 1,
     "score=TrueRegret: needs an environment with optimal_return(level)"),
    (scores.Learnability(), "rank", (), 1,
     "score=Learnability: needs an environment that reports solved episodes (evorl.types.SolvableLevelEnv)"),
    (scores.ValueDisagreement(), "rank", ("value",), 1,
     "score=ValueDisagreement: needs a student with several value functions, num_values"),
    (scores.MaxMC(), "proportional", ("value", "best"), 1,
     "prioritization=proportional: must be rank, because MaxMC can be negative"),
    (scores.RelativeRegret(), "rank", (), 1, "num_students=1: RelativeRegret needs at least 2"),
])  # fmt: skip
def test_what_cannot_be_scored_is_refused_in_one_line(score, prioritization, gives, students, message):
    with pytest.raises(OptionError) as error:
        scores.check_score(score, prioritization, gives, students)
    assert str(error.value) == message


def test_scores_of_copies_are_those_of_each():
    several = jax.tree.map(lambda x: jnp.stack([x, x + x]), outcome())
    found = jax.jit(jax.vmap(scores.MaxMC()))(several)
    np.testing.assert_array_equal(found[1], scores.MaxMC()(jax.tree.map(lambda x: x + x, outcome())))


class InThrees(OnPolicy):
    """A student whose values are of a third of its rewards."""

    def value_scale(self, state):
        return 3.0


@pytest.mark.parametrize("reward_scale", [1.0, 0.5])
def test_what_a_student_thought_of_levels_is_in_the_units_of_rewards(reward_scale):
    maze = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
    agent = PPO(hidden=(4,), reward_scale=reward_scale)
    student, reward = InThrees(maze, agent, num_envs=2, num_steps=4, batch_size=8), jnp.zeros((4, 2))
    over, value, values = jnp.zeros((4, 2), bool), jnp.ones((4, 2)), jnp.arange(24.0).reshape(4, 2, 3)
    levels = jax.jit(jax.vmap(maze.sample_level, (0, None)))(
        jax.random.split(jax.random.key(0), 2), maze.default_params
    )
    batch = Batch(None, None, None, value, value, value, ensemble_values=values)
    state = jax.jit(student.init)(jax.random.key(1))
    rollout = Transition(None, None, reward, None, over, over, weight=jnp.ones((4, 2)))
    seen = curricula.compute_outcome(student, state, rollout, batch, levels, jnp.zeros(2))
    np.testing.assert_array_equal(seen.value, 3 * value / reward_scale)
    np.testing.assert_array_equal(seen.advantage, value / reward_scale)
    np.testing.assert_array_equal(seen.values, 3 * jnp.moveaxis(values, -1, 0) / reward_scale)
