"""Every score, and every curriculum as it ships, ranks levels of known solve rates as its definition says."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy
from evorl.agents import PPO
from evorl.training import runs
from evorl.training.configuration import config
from evorl.ued import Outcome, scores
from tests.rates import RATES, Rates

Q = np.array(RATES)
ENV = Rates()


def rollouts(levels, repeats=1, windows=1, limit=6, seed=0):
    """Return rewards and ends [steps, 5 levels repeats] of episodes that are solved at step 1 or end at the limit."""
    random = np.random.default_rng(seed)
    num_envs, steps = len(RATES) * levels * repeats, windows * limit
    rate = np.repeat(Q, levels * repeats)
    reward, ended = np.zeros((steps, num_envs), np.float32), np.zeros((steps, num_envs), bool)
    solves, begin = random.random(num_envs) < rate, np.zeros(num_envs, int)
    for step in range(steps):
        reward[step] = solves
        ended[step] = solves | (step - begin == limit - 1)
        solves = np.where(ended[step], random.random(num_envs) < rate, solves)
        begin = np.where(ended[step], step + 1, begin)
    return reward, ended


def by_rate(score, outcome):
    """Return means over the levels of each rate, and their standard errors."""
    each = np.asarray(jax.jit(score)(outcome), np.float64).reshape(len(RATES), -1)
    assert np.isfinite(each).all()
    return each.mean(1), each.std(1, ddof=1) / np.sqrt(each.shape[1])


@pytest.mark.parametrize(("score", "wanted"), [  # what it is on average where values are right and the best return is 1
    (scores.MaxMC(), 1 - Q),
    (scores.PositiveValueLoss(), Q * (1 - Q)),
    (scores.L1ValueLoss(), 2 * Q * (1 - Q)),
    (scores.ValueDisagreement(), Q / 2),
    (scores.NegativeReturn(), -Q),
    (scores.TrueRegret(), 1 - Q),
    (scores.RelativeRegret(), Q * (1 - Q)),
    (scores.PopulationRegret(), Q * (1 - Q)),  # 1 - (1 - q)^2 - q
])  # fmt: skip
def test_a_score_is_the_function_of_the_solve_rate_that_it_is_defined_to_be(score, wanted):
    """One environment for each level and student, for the steps of one episode."""
    levels = 2000
    reward, ended = rollouts(levels)
    value = np.broadcast_to(np.repeat(Q, levels), reward.shape).astype(np.float32)
    one = np.ones(len(RATES) * levels, np.float32)
    solved = np.cumsum(reward, 0) > 0
    given = Outcome(reward, ended, value, (reward[:1] > 0) - value, one, np.stack([0 * value, value]), solved, one)
    if score.min_students > 1:
        other, over = rollouts(levels, seed=1)
        given = Outcome(np.stack([reward, other]), np.stack([ended, over]))
    mean, error = by_rate(score, jax.tree.map(jnp.asarray, given))
    np.testing.assert_allclose(mean, wanted, atol=1e-5 + 5 * error.max())


@pytest.mark.parametrize(("repeats", "windows"), [(4, 1), (8, 1), (1, 4), (2, 2)])
def test_learnability_is_unbiased_but_for_the_number_of_episodes(repeats, windows):
    """The mean of k (n - k) / n^2 of a binomial k is q (1 - q) (n - 1) / n."""
    reward, ended = rollouts(3000, repeats, windows)
    outcome = Outcome(jnp.asarray(reward), jnp.asarray(ended), repeats=repeats, guaranteed_episodes=windows)
    mean, error = by_rate(scores.Learnability(), replace(outcome, solved=outcome.running_returns > 0))
    n = repeats * windows
    np.testing.assert_allclose(mean, Q * (1 - Q) * (n - 1) / n, atol=5 * error.max())


def shipped(name, env=ENV, **options):
    """Return the workflow of configs/agent/NAME.yaml for these levels, with linear networks."""
    workflow = runs.build(config.compose_config([f"agent={name}", "env=maze"]))[0]

    def on(env, learner):
        agent = PPO(hidden=())
        shape = learner.num_envs, 0, learner.num_epochs, 0
        return OnPolicy(env, agent, *shape, normalize_observations=False, normalize_values=False, eval_episodes=4)

    options = {"student": on(env, workflow.student)} | options
    if hasattr(workflow, "teacher"):
        options["teacher"] = on(env.make_editor(), workflow.teacher)
    return replace(workflow, **options)


def nearest(levels):
    return np.abs(np.asarray(levels)[:, None] - Q).argmin(1)


@pytest.mark.program
def test_sfl_keeps_the_levels_that_are_solved_half_of_the_time():
    """Compare how many levels of each rate are kept with a simulation of the trials."""
    workflow = shipped("sfl")
    tried, n = workflow.num_candidates, workflow.episodes

    def kept(key):
        state = workflow.init(key)
        return workflow.bound(state).plan(state, jax.random.fold_in(key, 1))[1]

    found = jax.jit(jax.vmap(kept))(jax.random.split(jax.random.key(0), 64))
    shares = np.bincount(nearest(np.ravel(found.levels)), minlength=5) / found.score.size
    random, simulated = np.random.default_rng(0), np.zeros(5)
    for _ in range(1000):
        rate = random.integers(5, size=tried)
        solved = random.binomial(n, Q[rate]) / n
        best = np.argsort(-solved * (1 - solved), kind="stable")[: workflow.capacity]
        simulated += np.bincount(rate[best], minlength=5)
    np.testing.assert_allclose(shares, simulated / simulated.sum(), atol=0.04)
    assert shares[2] > shares[[1, 3]].max() > shares[[1, 3]].min() > shares[[0, 4]].max()


@pytest.mark.program
@pytest.mark.parametrize("name", ["plr", "accel", "bred_levels", "evolved_levels"])
def test_a_buffer_scores_levels_by_how_much_better_they_were_ever_solved_than_they_are(name):
    """Set a student's values to the solve rates: MaxMC is 1 - q of what was ever solved, -q of what never was."""
    workflow = shipped(name, capacity=64)
    still = {"student": {"agent": {"learning_rate": 0.0}}}

    def run(key):
        state = workflow.init(key, still)
        value = state.student.agent.actor.params["params"]["value"]["Dense_0"]
        value["kernel"], value["bias"] = jnp.ones((1, 1)), jnp.zeros(1)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, 100))

    state, metrics = jax.jit(run)(jax.random.key(0))
    assert np.asarray(metrics["levels/replayed"]).sum() > 20
    ledger, rates = state.buffer.score_table, np.asarray(state.buffer.levels)
    best = np.asarray(ledger.best)
    assert set(best) <= {0.0, 1.0}
    np.testing.assert_allclose(ledger.score, best - rates, atol=1e-5)


@pytest.mark.program
@pytest.mark.parametrize(("name", "wanted"), [("paired", lambda q: q * (1 - q)), ("minimax", lambda q: -q)])
def test_a_teacher_is_rewarded_by_the_function_of_the_solve_rate(name, wanted):
    for q in (0.1, 0.5, 0.9):
        workflow = shipped(name, Rates(q))

        def score(key, workflow=workflow):
            return workflow.step(workflow.init(key), key)[1]["levels/score"]

        found = np.asarray(jax.jit(jax.vmap(score))(jax.random.split(jax.random.key(0), 64)))  # each of 32 levels
        np.testing.assert_allclose(found.mean(), wanted(q), atol=5 * found.std() / 8 + 0.001)
