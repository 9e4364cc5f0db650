"""Sampling for learnability: which levels are kept, who plays them, and what the trials cost."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy
from evorl.agents import PPO
from evorl.envs.maze import Maze, RandomWalls
from evorl.errors import OptionError
from evorl.ued import Learnability, MaxMC, TrueRegret, curricula
from evorl.ued.sfl import SFL, LearnableLevels
from tests.iterating import iterations
from tests.tiers import program_fixture

ENV = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
AGENT = PPO(hidden=(4,))
STUDENT = OnPolicy(ENV, AGENT, 4, 10, 1, 20, eval_episodes=6)
SETTINGS = {"capacity": 5, "num_candidates": 6, "num_batches": 2, "episodes": 2, "trial_interval": 2}
WORKFLOW = SFL(STUDENT, **SETTINGS)


def walls(levels):
    return np.asarray(levels.walls).reshape(-1, 4)


@program_fixture(scope="module")
def history():
    """Of four iterations the state before, the plan, what is kept, what was played, the metrics, the state after."""
    return iterations(WORKFLOW, 4)


def test_trials_come_every_so_many_iterations_and_cost_their_steps(history):
    spent = [int(metrics["env_steps"]) for *_, metrics, _ in history]
    assert spent == [40 + 2 * 6 * 12, 40, 40 + 2 * 6 * 12, 40]
    assert WORKFLOW.iteration_cost == {"env_steps": (40, 184), "gradient_steps": (2, 2)}
    same = [
        np.array_equal(walls(before.learnable_levels.levels), walls(after.learnable_levels.levels))
        for before, *_, after in history
    ]
    assert same == [False, True, False, True]
    clock = [float(WORKFLOW.count_env_steps(after)) for *_, after in history]
    assert clock == np.cumsum(spent).tolist()  # at which schedules are evaluated


def test_half_of_the_envs_play_what_is_kept_and_the_others_fresh_levels(history):
    fresh = []
    for _, plan, kept, *_ in history:
        known, levels = {bytes(x) for x in walls(kept.levels)}, plan.starts.levels
        for index in range(4):
            own = {bytes(x) for x in np.asarray(levels.walls)[:, index]}
            if index < 2:
                assert own <= known
            else:
                fresh += own
    assert len(set(fresh)) > 10


@dataclass(frozen=True)
class Optimum:
    """A score that only the level decides."""

    outcome_fields = ()
    signed = False
    min_students = 1
    min_episodes = 1

    def __call__(self, outcome):
        return outcome.optimum


def test_the_best_of_all_batches_are_kept(history):
    """By a score that only the level decides, against NumPy's order of all candidates."""
    workflow = replace(WORKFLOW, score=Optimum())
    state = history[0][0]
    empty = replace(state.learnable_levels, score=jnp.full(5, -jnp.inf))
    kept, scores = empty, []
    for i in range(2):
        key = jax.random.key(i)
        kept = jax.jit(workflow.update_learnable_levels)(state, kept, key)
        candidates = curricula.sample_levels(ENV, jax.random.split(key, 3)[0], state.env_params, 6)
        scores += list(np.asarray(jax.vmap(ENV.optimal_return)(candidates)))
    np.testing.assert_allclose(kept.score, np.sort(scores)[::-1][:5], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(ENV.optimal_return)(kept.levels), kept.score, rtol=1e-6)


def test_what_is_never_or_always_solved_is_not_learnable(history):
    _, _, kept, *_ = history[0]
    q = 0.5 - np.sqrt(np.maximum(0.25 - np.asarray(kept.score), 0))
    assert (np.asarray(kept.score) <= 0.25).all()
    assert (q >= 0).all()
    unsolvable = np.asarray(jax.vmap(ENV.optimal_return)(kept.levels)) == 0
    assert not np.asarray(kept.score)[unsolvable].any()
    assert (np.diff(np.asarray(kept.score)) <= 0).all()


@pytest.mark.program
def test_a_level_without_a_score_is_not_kept():
    class Nothing(Optimum):
        def __call__(self, outcome):
            return outcome.mean_return * jnp.nan

    workflow = replace(WORKFLOW, score=Nothing())
    state = workflow.init(jax.random.key(0))
    plan, kept = jax.jit(workflow.plan)(state, jax.random.key(1))
    assert isinstance(kept, LearnableLevels)
    assert np.isneginf(kept.score).all()
    assert len({bytes(x) for x in walls(plan.starts.levels)}) > 8  # all environments play fresh ones


def test_evaluations_are_of_fresh_levels(history):
    evaluation = jax.jit(WORKFLOW.evaluate)(history[-1][-1], jax.random.key(3))
    assert int(evaluation["episodes"]) == 6


@pytest.mark.parametrize(("options", "message"), [
    ({"capacity": 13}, r"capacity=13: must be at most num_batches \* num_candidates, 12"),
    ({"episodes": 1}, "score=Learnability: needs at least 2 complete episodes"),
    ({"kept_fraction": 1.5}, "kept_fraction=1.5: must be from 0 to 1"),
    ({"trial_interval": 0}, "trial_interval=0: must be at least 1"),
    ({"score": MaxMC()}, "score=MaxMC: needs"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        SFL(**{"student": STUDENT, **SETTINGS} | options)


@pytest.mark.parametrize("score", [Learnability(), TrueRegret()])
def test_scores_of_what_the_environment_tells_fit(score):
    workflow = replace(WORKFLOW, score=score)
    jax.eval_shape(lambda key: workflow.step(workflow.init(key), key), jax.random.key(0))
