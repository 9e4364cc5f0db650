"""Environments whose rewards or observations are NaN or infinite now and then: such steps count nowhere."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import Budget, fit, tree
from evorl.agents import A2C, IMPALA, PPO, MLPPolicy
from evorl.agents.team import Team
from evorl.ec import OpenES
from evorl.envs.maze import Maze, RandomWalls
from evorl.errors import DivergedError
from evorl.networks.recurrent import GRU
from evorl.spaces import Box, Discrete
from evorl.types import Batch, TimeStep, Transition
from evorl.ued.curricula import compute_outcome
from evorl.vector_env import EnvBatch, EpisodeStats, ResetStarts, RolloutPlan, TransitionStore, run_episodes
from evorl.vector_env.rollout_loop import rollout
from evorl.workflows import Evolution, OnPolicy
from evorl.workflows.on_policy import OnPolicyState
from tests.gaming import Button

LENGTH, BAD_STEP, KEY = 4, 2, jax.random.key(3)


@dataclass(frozen=True)
class Faulty:
    """A reward of 1 a step, four steps an episode; in some episodes, [1, .] in obs, the second step is bad."""

    bad: str = "reward"  # or "obs"
    value: float = np.nan
    share: float = 0.5  # of bad episodes
    max_episode_steps: int = LENGTH

    observation_space = Box(-1.0, 10.0, (2,))
    action_space = Discrete(2)
    default_params = None
    fresh_reset = True

    def reset(self, key, params):
        is_bad = jax.random.bernoulli(key, self.share).astype(jnp.float32)
        obs = jnp.stack([is_bad, 0.0])
        return obs, obs

    def step(self, key, env_state, action, params):
        after = env_state.at[1].add(1)
        is_bad = (after[0] > 0) & (after[1] == BAD_STEP)
        reward = jnp.where(is_bad & (self.bad == "reward"), self.value, 1.0)
        obs = jnp.where(is_bad & (self.bad == "obs"), self.value, after)
        return after, TimeStep(obs, reward, jnp.bool_(False), after[1] >= LENGTH)


@dataclass(frozen=True)
class AlwaysBad(Faulty):
    def step(self, key, env_state, action, params):
        env_state, timestep = super().step(key, env_state, action, params)
        return env_state, replace(timestep, reward=jnp.nan * timestep.reward)


def policy(obs, memory, keys):
    return jnp.zeros(len(keys), jnp.int32), memory, {}


def world(env, n=6):
    return EnvBatch(env, None, None, n)


@pytest.mark.parametrize(("bad", "value"), [("reward", np.nan), ("obs", np.nan), ("reward", -np.inf), ("obs", np.inf)])
def test_a_bad_step_is_masked_and_counted_and_its_env_begins_anew(key, bad, value):
    steps, n = 12, 6
    env = world(Faulty(bad, value), n)
    keys = jax.random.split(key, n)
    row = jax.eval_shape(lambda: env.interact(policy, env.init_envs(env.reset(keys)), keys)[1])
    blank = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), row)
    store = TransitionStore(steps, (blank, jnp.zeros((steps, n), bool)), lambda _, rows, mask: (rows, mask))
    plan = RolloutPlan(ResetStarts(), episodes=2**31 - 1, steps=steps)
    after, stats, (rows, mask) = jax.jit(lambda key: rollout(env, policy, plan, None, key, store))(key)
    obs, mask, truncated = np.asarray(rows.obs), np.asarray(mask), np.asarray(rows.truncated)
    expected = ~((obs[..., 0] > 0) & (obs[..., 1] == BAD_STEP - 1))
    assert 0 < (~expected).sum() < expected.size
    np.testing.assert_array_equal(mask, expected)
    assert np.isfinite(obs).all()
    np.testing.assert_array_equal(obs[1:][~mask[:-1]][:, 1], 0)  # a start
    before = np.concatenate([~mask[1:], np.zeros_like(mask[:1])])
    np.testing.assert_array_equal(truncated, ~mask | before | (obs[..., 1] == LENGTH - 1))
    np.testing.assert_array_equal(stats.restarts, (~mask).sum(0))
    np.testing.assert_array_equal(stats.bad_rewards, (~mask).sum(0) * (bad == "reward"))
    np.testing.assert_array_equal(stats.steps, mask.sum(0))
    np.testing.assert_array_equal(stats.returns, LENGTH * stats.episodes)
    assert float(stats.metrics()["return"]) == LENGTH
    assert int(stats.metrics()["restarts"]) == (~mask).sum()
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.isfinite(x).all()), after))


def test_an_episode_that_is_cut_has_no_return_and_does_not_count(key):
    stats = run_episodes(world(Faulty(), 16), policy, ResetStarts(), key)
    cut = np.asarray(stats.restarts) > 0
    assert 0 < cut.sum() < 16
    np.testing.assert_array_equal(stats.episodes, ~cut)
    np.testing.assert_array_equal(stats.returns, np.where(cut, np.nan, LENGTH))
    np.testing.assert_array_equal(stats.episode_means["return"], np.where(cut, np.nan, LENGTH))  # the worst fitness


def of_envs(episodes, returns, restarts):
    none = jnp.zeros(len(episodes), jnp.int32)
    return EpisodeStats(none, jnp.array(episodes), jnp.array(returns), none, {}, jnp.array(restarts), none)


def test_the_return_of_an_evaluation_is_that_of_the_episodes_that_ended():
    found = of_envs([2, 1, 1], [6.0, 5.0, 1.0], [0, 1, 0]).evaluation_metrics()
    assert float(found["return"]) == 12 / 4
    assert int(found["restarts"]) == 1
    weighted = 2 * (3 - 3) ** 2 + (5 - 3) ** 2 + (1 - 3) ** 2  # by the episodes of each environment
    np.testing.assert_allclose(found["return_error"], np.sqrt(weighted / ((3 - 1) * 4)), rtol=1e-6)
    assert np.isnan(of_envs([0, 0], [0.0, 0.0], [1, 1]).evaluation_metrics()["return"])


def student(env, objective=None, core: Any = None, **options):
    remembering = {"core": core} if core else {}
    agent = replace(objective or PPO(), hidden=(4,), **remembering)
    sizes: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_epochs": 2, "batch_size": 16, "eval_episodes": 4}
    return OnPolicy(env, agent, **sizes | options)


@pytest.mark.program
@pytest.mark.parametrize("bad", ["reward", "obs"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": A2C(), "num_epochs": 1},
        {"objective": IMPALA(), "num_epochs": 1, "staleness": 2},
        {"core": GRU(3)},
        {"refresh": "minibatch"},
    ],
    ids=["ppo", "a2c", "impala", "recurrent", "refresh"],
)
def test_learners_on_policy_go_on(options, bad):
    workflow = student(Faulty(bad), **options)

    def run(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, 6))

    state, metrics = jax.jit(run)(jax.random.key(0))
    assert metrics["restarts"].sum() > 0
    leaves = jax.tree.leaves((state.agent, state.obs_statistics, state.reward_statistics, metrics))
    assert all(np.isfinite(x).all() for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))
    assert float(state.obs_statistics.count) == metrics["env_steps"].sum()
    assert float(state.reward_statistics.mean) == 1
    np.testing.assert_array_equal(metrics["env_steps"] + metrics["restarts"], 32)


@dataclass(frozen=True)
class Priceless(Button):
    """The price of pressing is NaN at odd steps."""

    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        paid = timestep.reward["presser"]
        bad = (paid < 0) & (after.steps % 2 == 1)
        return after, replace(timestep, reward=timestep.reward | {"presser": jnp.where(bad, jnp.nan, paid)})


@pytest.mark.program
def test_a_game_where_the_reward_of_one_member_is_bad_goes_on(key):
    """The member ends with that step; nothing of it is kept, and in the new game the member is there again."""
    env = Priceless()
    spaces = env.observation_space, env.action_space
    agent = PPO(hidden=(4,))
    workflow = OnPolicy(
        env,
        Team(agent, observation_space=spaces[0], action_space=spaces[1]),
        num_envs=4,
        num_steps=16,
        batch_size=32,
        eval_episodes=4,
    )

    def run(key):
        state, rollout, metrics = workflow.collect(workflow.init(key), key)
        return rollout, metrics, workflow.bound(state).learn(state, rollout, key)

    rollout, metrics, (state, of_learner) = jax.jit(run)(key)
    kept, ended = np.asarray(rollout.weight) > 0, np.asarray(rollout.is_done)
    assert 0 < (~kept).sum() == metrics["bad_rewards"]
    assert ended[~kept].all()
    assert ended[:-1][~kept[1:]].all()
    assert not np.asarray(rollout.members_done["presser"])[1:][~kept[:-1]].any()
    pressed = np.asarray(rollout.action["presser"])[..., 0] & ~np.asarray(rollout.members_done["presser"])[..., 0]
    np.testing.assert_array_equal(rollout.reward["presser"][..., 0], np.where(kept, -1 * pressed, 0))
    assert tree.test_floats(jnp.isfinite, (state.agent, of_learner))


@pytest.mark.program
def test_a_training_says_it_once_and_ends_where_no_step_counts(capsys):
    result = fit(student(Faulty()), budget=Budget(iterations=4), chunk=1, evaluations=1)
    assert sum(row["restarts"] for row in result.rows[-1:]) > 0
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if "rewards and 0 observations were NaN or infinite" in line]) == 1
    with pytest.raises(
        DivergedError, match=r"no environment step is valid: .* rewards and 0 observations were NaN or infinite"
    ):
        fit(student(AlwaysBad()), budget=Budget(env_steps=4096), chunk=1, evaluations=1)


@pytest.mark.program
def test_an_evaluation_in_which_every_episode_is_cut_ends_and_has_no_return():
    result = fit(student(Faulty()), budget=Budget(iterations=1), chunk=1, evaluations=1, eval_env=AlwaysBad())
    last = result.rows[-1]
    assert last["kind"] == "evaluation"
    assert np.isnan(last["return"])
    assert last["return_error"] == np.inf


@pytest.mark.program
def test_evolution_counts_a_member_with_a_bad_step_as_the_worst():
    env = Faulty()
    agent = MLPPolicy(hidden=(4,))
    workflow = Evolution(env, agent, OpenES(8), vbn_steps=8, eval_episodes=8)

    def run(key):
        return jax.lax.scan(workflow.step, workflow.init(key), jax.random.split(key, 3))

    state, metrics = jax.jit(run)(jax.random.key(0))
    assert metrics["restarts"].sum() > 0
    assert tree.test_floats(jnp.isfinite, state.evolver)


@pytest.mark.program
def test_a_level_with_a_bad_step_has_no_score():
    weight = jnp.ones((3, 2)).at[1, 1].set(0)
    ends = jnp.zeros((3, 2), bool).at[2].set(True)
    rollout = Transition(None, None, weight, None, jnp.zeros_like(ends), ends, weight=weight)
    batch = Batch(None, None, None, jnp.zeros((3, 2)), jnp.ones((3, 2)), None)
    maze = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=3)
    agent = PPO(hidden=(4,))
    levels = jax.vmap(maze.sample_level, (0, None))(jax.random.split(KEY, 2), maze.default_params)
    student = OnPolicy(maze, agent, 2, 3, 1, 6, normalize_values=False)
    nothing = tree.fill_fields(OnPolicyState, None)
    seen = compute_outcome(student, nothing, rollout, batch, levels, jnp.full(2, -jnp.inf))
    np.testing.assert_array_equal(seen.mean_return, [3, np.nan])
    np.testing.assert_array_equal(np.isnan(seen.advantage).any(0), [False, True])
