"""What a policy is worth on levels that are given: test sets of mazes, and the worst of random ones."""

from collections import Counter
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import PBT, OnPolicy, Vmapped, tree
from evorl.agents import PPO
from evorl.envs.maze import LevelTable, Maze, RandomWalls, equal, ood, suite
from evorl.envs.physics import Physics
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack, RewardTransform
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU
from evorl.priors import Uniform
from evorl.spaces import Box, Discrete
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.suites import MazeSuite, RiskSuite, tables
from evorl.training.suites.level_episodes import run_on_levels
from evorl.training.suites.risk import bootstrap_curve_interval, compute_risk_curve, sample_solvable
from evorl.types import TimeStep
from tests.conftest import leaves_equal

ENV = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
SETTINGS = {"num_envs": 4, "num_steps": 6, "num_epochs": 1, "batch_size": 12, "eval_episodes": 4}


def student(env):
    agent = PPO(hidden=(8,), core=GRU(3))
    return OnPolicy(env, agent, **SETTINGS, normalize_observations=False, normalize_values=False)


PLAIN = student(ENV)


@pytest.mark.program
def test_padded_mazes_look_and_end_as_they_are(key):
    """Along the same actions, one by one: what is seen, the rewards and the ends."""
    for name in ("Crossing", "Memory", "FourRooms"):
        env = replace(ood.create_test_mazes(ENV)[name], view_size=5, see_through_walls=False)
        padded = jax.tree.map(
            lambda x: x[0, 0], suite.sample_test_levels(key, (name, "LargeCorridor"), 1, "ood", ENV, None)
        )
        assert padded.grid.shape == (19, 19)
        rows = ood.LEVELS[name].height
        source = ood.LEVELS[name].sample
        keys = jax.random.split(jax.random.fold_in(key, ("as trained", *ood.LEVELS).index(name)), 1)
        own = source(keys[0], None)
        assert np.asarray(padded.grid)[:rows, :rows].tolist() == np.asarray(own.grid).tolist()

        @jax.jit
        def walk(level, env=env):
            def step(state, action):
                after, seen = env.step(key, state, action, None)
                return after, seen

            actions = jax.random.choice(key, jnp.array([0, 1, 2, 2, 2]), (env.max_episode_steps,))
            return env.reset_to_level(key, level)[1], jax.lax.scan(step, env.reset_to_level(key, level)[0], actions)[1]

        (first, seen), (first_own, seen_own) = walk(padded), walk(own)
        assert leaves_equal((first, replace(seen, reward=0)), (first_own, replace(seen_own, reward=0)))
        np.testing.assert_allclose(seen.reward, seen_own.reward, rtol=1e-6)  # XLA multiplies by a constant's inverse


@pytest.mark.program
@pytest.mark.parametrize("explores", [False, True])
def test_a_suite_in_one_program_gives_the_returns_of_each_maze_by_itself(explores, key):
    """Of an agent that sees two frames, and whose rewards are scaled where it learns."""
    workflow = student(RewardTransform(FrameStack(ENV, 2), scale=3))
    state = workflow.init(key)
    names = ("SmallCorridor", "Crossing", "PerfectMaze", "LargeCorridor")
    test = MazeSuite(workflow, episodes=24)
    played = jax.jit(test.play_episodes, static_argnames="names")(state, key, names=names)[explores]
    key_levels, key_play = jax.random.split(key)
    keys = jax.random.split(key_play, len(names))
    for i, name in enumerate(names[:3]):
        alone = replace(workflow, env=FrameStack(ood.create_test_mazes(ENV)[name], 2))
        levels = tree.index(suite.sample_test_levels(key_levels, (name,), 24, "ood", ENV, None), 0)
        own = replace(levels, step_limit=None)  # so that the environment's counts
        stats = jax.jit(lambda own, key, alone=alone: run_on_levels(alone, state, own, explores, key))(own, keys[i])
        assert stats.episodes.tolist() == [1] * 24
        np.testing.assert_allclose(played.returns[i], stats.returns, rtol=1e-6)
        np.testing.assert_array_equal(played.lengths[i], stats.lengths)
        assert played.lengths[i].max() <= ood.episode_step_limit(name)
    if explores:
        assert 0 < (played.returns > 0).mean() < 1


@pytest.mark.program
def test_minimax_looks_to_the_right_where_a_layout_leaves_it_open(key):
    both = [suite.sample_test_levels(key, suite.SMALL_MAZES, 16, name, ENV, None) for name in suite.SUITES]
    open_ones = {name for name in suite.SMALL_MAZES if getattr(ood.LEVELS[name], "direction", 0) == ood.ANY_DIRECTION}
    assert len(open_ones) == 6
    for i, name in enumerate(suite.SMALL_MAZES):
        ours, theirs = (tree.index(levels, i) for levels in both)
        assert equal(replace(ours, direction=0 * ours.direction), replace(theirs, direction=0 * theirs.direction))
        if name in open_ones:
            assert len(set(ours.direction.tolist())) == 4
            assert set(theirs.direction.tolist()) == {0}
        else:
            assert ours.direction.tolist() == theirs.direction.tolist()


def test_the_curve_of_known_chances_is_the_analytic_one():
    """Chances uniform, ten attempts: k of them solved is as likely for each k, and the rate is then (k + 1) / 12."""
    rng = np.random.default_rng(0)
    chance = rng.uniform(size=200_000)
    first, second = rng.binomial(10, chance, (2, len(chance))) / 10
    percents = (0.1, 5, 100 / 11, 200 / 11, 50, 100)
    expected = [1 / 12, 1 / 12, 1 / 12, 1.5 / 12, (15 + 6 * 0.5) / 5.5 / 12, 0.5]
    np.testing.assert_allclose(compute_risk_curve(first, second, percents), expected, atol=0.004)
    assert compute_risk_curve(first, first, [5])[0] == 0  # of the set that chose them: too low
    assert compute_risk_curve([0.2, 0, 0.2, 1], [0, 1, 0.5, 1], (25, 50, 75, 100)).tolist() == [1, 0.625, 0.5, 0.625]


def test_the_interval_covers_the_curve():
    rng = np.random.default_rng(1)
    percents, covered = (10, 50, 100), []
    truth = [(1 + 0.1 * 2) / 1.1 / 12, 3.2727 / 12, 0.5]
    for seed in range(60):
        chance = rng.uniform(size=400)
        first, second = rng.binomial(10, chance, (2, 400)) / 10
        low, high = bootstrap_curve_interval(first, second, percents, resamples=200, seed=seed)
        covered.append((low <= truth) & (truth <= high))
    assert (np.mean(covered, axis=0) > 0.85).all()


@dataclass(frozen=True)
class Lottery:
    """A level is the chance to win; an episode is one step."""

    max_episode_steps = 1
    default_params = None
    fresh_reset = True
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def sample_level(self, key, params):
        return jax.random.uniform(key)

    def get_level(self, env_state):
        return env_state

    def reset(self, key, params):
        return self.reset_to_level(key, self.sample_level(key, params))

    def reset_to_level(self, key, level):
        return level, level[None]

    def is_same_level(self, a, b):
        return a == b

    def step(self, key, env_state, action, params):
        won = jax.random.bernoulli(key, env_state).astype(jnp.float32)
        return env_state, TimeStep(env_state[None], won, jnp.bool_(True), jnp.bool_(False))

    def is_solved(self, episode_return):
        return episode_return > 0


@pytest.mark.program
def test_risk_of_an_environment_of_known_chances():
    workflow = student(FrameStack(Lottery(), 2))
    test = RiskSuite(workflow, levels=5000, attempts=10)
    assert test.levels_per_batch < 5000
    first, second = test.compute_solve_rates(workflow.init(jax.random.key(1)), jax.random.key(0))
    assert first.shape == second.shape == (5000,)
    np.testing.assert_allclose(compute_risk_curve(first, second, (5, 100)), [1 / 12, 0.5], atol=0.02)
    assert abs(np.corrcoef(first, second)[0, 1] - (1 / 12) / (1 / 12 + 1 / 60)) < 0.02


@pytest.mark.program
def test_levels_without_a_way_are_drawn_anew(key):
    levels, found = jax.jit(lambda keys: sample_solvable(ENV, ENV.default_params, keys))(jax.random.split(key, 256))
    assert found.all()
    optimum = jax.vmap(ENV.optimal_return)
    assert (optimum(levels) > 0).all()
    assert not (
        optimum(jax.vmap(lambda key: ENV.sample_level(key, ENV.default_params))(jax.random.split(key, 256))) > 0
    ).all()
    closed = replace(ENV, levels=LevelTable((">#G",)))
    assert not sample_solvable(closed, closed.default_params, key[None])[1].any()
    workflow = student(closed)
    with pytest.raises(OptionError, match="suite=risk: none of 1000 consecutive random levels can be solved"):
        RiskSuite(workflow, 2, 1).compute_solve_rates(workflow.init(key), key)


def test_intervals_are_over_seeds_where_there_are_several():
    seeds = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 1.0]])  # their means: 0.5, 0.5, 0.75
    mean, low, high = tables.compute_cell(seeds)
    assert mean == pytest.approx(7 / 12)
    reach = 4.303 / 12  # t of two degrees of freedom, and the standard error
    np.testing.assert_allclose([low, high], [7 / 12 - reach, 7 / 12 + reach], atol=1e-3)
    assert tables.compute_cell(seeds[:2])[1:] == (-np.inf, np.inf)


def test_intervals_of_one_state_are_over_its_episodes():
    mean, low, high = tables.compute_cell(np.tile([0.0, 1.0], (1, 50)))
    assert mean == 0.5
    np.testing.assert_allclose([low, high], [0.404, 0.596], atol=1e-3)  # 0.5 +- 0.96 / 10, of a rate
    assert tables.compute_cell(np.zeros((1, 64)))[1:] == pytest.approx((0, 0.0566), abs=1e-4)  # z^2 / (64 + z^2)
    mean, low, high = tables.compute_cell(np.tile([0.0, 0.8], (1, 50)))
    np.testing.assert_allclose([low, high], [0.4 - 0.0798, 0.4 + 0.0798], atol=1e-3)  # t = 1.984, 0.402 / 10


def measured(state):
    return {"mine/iteration": state.iteration * 1.0, "measured_steps": jnp.int32(1000)}


@pytest.mark.program
def test_a_training_measures_beside_each_evaluation_and_goes_on_bitwise(tmp_path):
    budget, more = Budget(iterations=6), {"chunk": 2, "evaluations": 2, "num_seeds": 2}
    compiled = []
    listen = lambda event, _, **of: compiled.append(of["fun_name"]) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        whole = fit(PLAIN, 17, budget, **more, measure=measured)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sum("measure_all" in name for name in compiled) == 1
    without = fit(PLAIN, 17, budget, **more)
    assert leaves_equal(whole.state, without.state)
    rows = [row for row in whole.rows if row["kind"] == "evaluation"]
    assert [row["mine/iteration"] for row in rows] == [row["iteration"] for row in rows]
    assert all(row["seeds"]["mine/iteration"] == [row["iteration"]] * 2 for row in rows)
    plain = [row for row in without.rows if row["kind"] == "evaluation"]
    assert [row["return"] for row in plain] == [row["return"] for row in rows]
    assert whole.progress.evaluation_steps == without.progress.evaluation_steps + len(rows) * 2 * 1000
    first = Checkpoints(tmp_path)
    fit(PLAIN, 17, Budget(iterations=2), **more, checkpoints=first, measure=measured)
    first.close()
    again = Checkpoints(tmp_path)
    resumed = fit(PLAIN, 17, budget, **more, checkpoints=again, measure=measured)
    again.close()
    assert leaves_equal(resumed.state, whole.state)


@pytest.mark.program
def test_a_training_knows_its_solved_rates_on_held_out_mazes():
    workflow = PBT(Vmapped(PLAIN, 4), steps_per_generation=1)
    test = MazeSuite(workflow, episodes=1)
    result = fit(workflow, budget=Budget(iterations=1), evaluations=1, measure=test)
    row = result.rows[-1]
    names = Counter(name.split("/")[0] for name in row)
    assert names["ood"] == 2 * (2 + 15)
    for begin in ("ood/", "ood/sampled/"):
        rates = [row[f"{begin}solved/{name}"] for name in suite.SMALL_MAZES]
        assert row[f"{begin}solved"] == pytest.approx(np.mean(rates))
        assert set(rates) <= {0.0, 1.0}
        assert 0 <= row[f"{begin}return"] <= row[f"{begin}solved"]
    of_others = 3 * 128 * ENV.max_episode_steps  # of the members that are not reported, in all rounds
    assert row["measured_steps"] <= of_others + 2 * sum(ood.episode_step_limit(name) for name in suite.SMALL_MAZES)


CARTPOLE = Physics(Gymnax("CartPole-v1"), {"length": Uniform(0.1, 1.0)})
BAD = {
    "unknown suite mini; did you mean minimax?": lambda: MazeSuite(PLAIN, "mini"),
    "episodes=0: must be at least 1": lambda: MazeSuite(PLAIN, episodes=0),
    "suite=ood: is for agents trained on mazes, not on Physics": lambda: MazeSuite(student(CARTPOLE)),
    "suite=ood: needs full_view=false": lambda: MazeSuite(student(replace(ENV, full_view=True))),
    "suite=ood: Vmapped has no policy to evaluate": lambda: MazeSuite(Vmapped(PLAIN, 2)),
    "suite=risk: no return solves a level of Physics; set its solved_return": lambda: RiskSuite(student(CARTPOLE)),
    r"suite=risk: needs levels that are solved or not \(evorl.types.SolvableLevelEnv\), unlike Gymnax": lambda: (
        RiskSuite(student(CARTPOLE.inner))
    ),
    "attempts=0: must be at least 1": lambda: RiskSuite(PLAIN, attempts=0),
    "levels=0: must be at least 1": lambda: RiskSuite(PLAIN, levels=0),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_tested_is_refused(message):
    with pytest.raises(OptionError, match=message) as refused:
        BAD[message]()
    assert "\n" not in str(refused.value)
