"""Environments on the host of which a step waits for some alone: what each did, and what became of the rest."""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN, PPO, TD3, MLPPolicy
from evorl.ec.openes import OpenES
from evorl.envs.actions import ActionRepeat, StickyAction
from evorl.envs.host import HostEnv, calls, pool_registry
from evorl.envs.wrappers import FrameStack
from evorl.errors import HostError, OptionError
from evorl.n_step import NStepWindow
from evorl.replay import SequenceReplay
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.types import Transition
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, TransitionStore, rollout
from evorl.vector_env.host_rollout import allocate_pending_step
from evorl.workflows import Evolution, OffPolicy, OnPolicy, Vmapped
from evorl.workflows.trajectories import Trajectories
from tests.conftest import leaves_equal

NUM_ENVS, STEPS = 4, 12


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    pool_registry.close_all()


def told(batch, workers=4, restart=False, timeout_seconds=60.0, **options):
    return HostEnv("tests.hosted:Told-v0", options, workers, timeout_seconds, restart, batch=batch)


def slow(batch, tmp_path, seconds=0.1, workers=4, **options):
    """Environments of which one is slower than all others."""
    once = tmp_path / "once"
    once.touch()
    env = told(batch, workers, fault="slow", once=str(once), seconds=seconds, length=5, **options)
    _ = env.observation_space
    once.unlink()
    return env


def tagged(env):
    """A policy whose actions are drawn, and which says beside them which one it is."""

    def policy(tag):
        def act(obs, memory, keys):
            return jax.vmap(env.action_space.sample)(keys), memory, {"tag": jnp.full(len(keys), tag)}

        return act

    return policy


def program(env, steps=STEPS):
    """(envs or None, key, tag) -> the environments, their stats, and each one's own steps, leaves [steps, n]."""
    world, policy = EnvBatch(env, env.default_params, None, NUM_ENVS), tagged(env)
    keys = jax.random.split(jax.random.key(0), NUM_ENVS)

    def begin():
        envs = allocate_pending_step(world, policy(0), world.init_envs(world.reset(keys)))
        return envs, tree.index(world.interact(policy(0), envs, keys)[1], 0)

    blank, row = jax.eval_shape(begin)

    @jax.jit
    def run(envs, key, tag, restart):
        store = TransitionStore(5, Trajectories.empty(row, steps, NUM_ENVS), Trajectories.add)
        plan = RolloutPlan(ResetStarts(), restart, steps=steps)
        envs, stats, into = rollout(world, policy(tag), plan, envs, key, store)
        return envs, stats, into.transitions, into.lengths

    def one(envs, key, tag):
        return run(tree.zeros_like(blank) if envs is None else envs, jax.random.key(key), tag, envs is None)

    return one


def column(rows, index, count):
    """The first steps of an environment."""
    return jax.tree.map(lambda x: x[:count, index], rows)


def said(folder):
    """What each environment was asked, in the order of when it was made."""
    paths = sorted(folder.glob("*-*"), key=lambda path: path.stat().st_mtime)
    return [[line.split() for line in path.read_text().splitlines()] for path in paths]


def test_a_start_within_a_step_counts_its_own_steps_and_leaves_those_of_other_envs(monkeypatch):
    class Pool:
        """One whose first environment's episode ends, and begins again with a count of 50."""

        def step(self, acts, lease, steps, action):
            ends = np.array([True, False, False])
            return lease, steps + 1, action, np.float32([1, 2, 3]), ends, ends & False

        def reset(self, acts, leaves, lease, seed):
            np.testing.assert_array_equal(acts, [True, False, False])
            return np.array([7, 0, 0]), np.array([50, 0, 0]), np.float32([9, 0, 0])

    monkeypatch.setattr(pool_registry, "get_pool", lambda env: Pool())
    monkeypatch.setattr(calls, "has_autoreset", lambda env: True)
    lease, steps, goes_on = np.array([3, 4, 5]), np.array([10, 20, 30]), np.ones(3, bool)
    found = calls._step_on_host(told(0), goes_on, goes_on, lease, steps, np.zeros((3, 2), int), np.float32([4, 5, 6]))
    np.testing.assert_array_equal(found[0], lease)
    np.testing.assert_array_equal(found[1], [50, 21, 31])
    np.testing.assert_array_equal(found[-1], [True, False, False])


@pytest.mark.program
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_each_env_plays_what_it_plays_alone(batch, tmp_path):
    """Over three plays, in which one environment is slower by far: no step is lost or doubled, each has its order."""
    env = slow(batch, tmp_path, seconds=0.03, log=str(tmp_path))
    run, envs, found = program(env), None, []
    for i in range(3):
        envs, stats, rows, filled = jax.device_get(run(envs, i, i))
        np.testing.assert_array_equal(stats.steps, filled)
        np.testing.assert_array_equal(rows.weight.sum(0), filled)
        assert (filled == STEPS).sum() > NUM_ENVS - batch
        found.append((rows, filled))
    assert pool_registry.find_fault() is None
    columns = []
    for index in range(NUM_ENVS):
        own = [column(rows, index, filled[index]) for rows, filled in found]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *own)
        k = np.arange(len(whole.reward))
        np.testing.assert_array_equal(whole.obs[:, 1], k % 5)
        np.testing.assert_array_equal(whole.next_obs[:, 1], k % 5 + 1)
        np.testing.assert_array_equal(whole.reward, k % 5 + 1)
        ends = np.cumsum([len(part.reward) for part in own])[[int(filled[index]) < STEPS for _, filled in found]] - 1
        cut = np.isin(k, ends)  # an environment that has fewer steps in a play is valued at the last
        np.testing.assert_array_equal(whole.truncated, (k % 5 == 4) | cut)
        assert [len(set(whole.obs[k // 5 == i, 0])) for i in range(len(k) // 5)] == [1] * (len(k) // 5)
        columns.append([str(action) for action in whole.action])
    asked = [[words[1] for words in lines if words[0] == "step"] for lines in said(tmp_path)]
    for own in columns:
        assert any(own == one[: len(own)] and len(one) - len(own) <= 1 for one in asked)
    assert (min(map(len, columns)) < 3 * STEPS) == (batch == 3)  # which is what does not wait for the last one


@pytest.mark.program
def test_what_acted_is_what_is_kept(tmp_path):
    """A step that is under way at the end of a play is the first of the next one, by the policy that took it."""
    env = slow(3, tmp_path, 0.3)
    run = program(env)
    envs, _, _, filled = jax.device_get(run(None, 0, 0))
    late = int(np.argmin(filled))
    waits = envs.env_state.pending & (envs.env_state.lease > 0)
    assert waits[late]
    time.sleep(0.4)
    _, _, rows, _ = jax.device_get(run(envs, 1, 1))
    np.testing.assert_array_equal(rows.extras["tag"][0], np.where(waits, 0, 1))
    np.testing.assert_array_equal(rows.action[0][waits], envs.pending_step[0][waits])
    np.testing.assert_array_equal(rows.obs[0, :, 1], filled % 5)
    assert (rows.extras["tag"][1][rows.weight[1] > 0] == 1).all()


@pytest.mark.program
def test_cartpole_is_what_it_is_in_lockstep_bit_for_bit():
    lockstep = HostEnv("CartPole-v1", workers=2, max_episode_steps=9)
    columns = []
    for env in (lockstep, replace(lockstep, batch=2)):
        _, _, rows, filled = jax.device_get(program(env)(None, 3, 0))
        columns.append([column(rows, i, filled[i] - 1) for i in range(NUM_ENVS)])
    for one, other in zip(*columns, strict=True):
        same = min(len(one.reward), len(other.reward))
        assert same > 5
        assert leaves_equal(*(tree.index(x, slice(same)) for x in (one, other)))


@pytest.mark.program
def test_wrappers_see_a_step_once(tmp_path):
    """Noise of theirs too is that of when the step was sent."""
    env = slow(3, tmp_path, 0.1, log=str(tmp_path))
    run, envs, found = program(FrameStack(StickyAction(env, 0.5), 2)), None, []
    for i in range(2):
        envs, _, rows, filled = jax.device_get(run(envs, i, 0))
        found.append([column(rows, index, filled[index]) for index in range(NUM_ENVS)])
    asked = [[int(words[1]) for words in lines if words[0] == "step"] for lines in said(tmp_path)]
    for own in zip(*found, strict=True):
        seen = np.concatenate([part.obs[:, :, 1] for part in own])
        k = np.arange(len(seen)) % 5
        np.testing.assert_array_equal(seen, np.stack([np.maximum(k - 1, 0), k], 1))
        drawn = np.concatenate([part.action for part in own])
        fits = [taken for taken in asked if len(drawn) <= len(taken) <= len(drawn) + 1]
        sticks = [np.where(np.arange(len(drawn)) % 5 == 0, drawn, taken[: len(drawn)]) for taken in fits]
        one_of = [np.isin(taken, [3, 4]).all() and (taken[::5] == drawn[::5]).all() for taken in sticks]
        assert any(one_of)


@pytest.mark.program
@pytest.mark.parametrize(
    ("fault", "workers"), [("step", 3), ("nan", 3), ("reset", 3), ("kill", 3), ("kill", 1), ("hang", 1)]
)
def test_with_restart_only_what_fails_is_lost(fault, workers, tmp_path):
    once = tmp_path / "once"
    once.touch()
    env = told(2, workers, True, 0.5, fault=fault, once=str(once), episodes=1, log=str(tmp_path))
    _ = env.observation_space
    once.unlink()
    _, stats, rows, filled = jax.device_get(program(env)(None, 0, 0))
    assert pool_registry.find_fault() is None
    here = rows.weight > 0
    np.testing.assert_array_equal(here.sum(0), stats.steps)
    np.testing.assert_array_equal(stats.steps + stats.restarts, filled)
    mates = 1 if fault in ("step", "nan") else NUM_ENVS if workers == 1 else 2
    assert 0 <= stats.restarts.sum() <= mates
    if fault != "reset" and (fault, workers) != ("kill", 3):  # a play may end before it is missed
        assert stats.restarts.sum() >= 1
    for index in range(NUM_ENVS):
        own = column(rows, index, filled[index])
        new = np.concatenate([[True], own.truncated[:-1]])  # a step that is lost counts as an end
        steps = np.arange(len(new)) - np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
        np.testing.assert_array_equal(own.obs[:, 1][own.weight > 0], steps[own.weight > 0])
        assert (own.truncated[:-1] | (own.weight[1:] > 0)).all()


@pytest.mark.program
def test_without_restart_the_first_that_fails_ends_the_training(tmp_path):
    env = told(2, fault="step", episodes=2, length=6)
    with pytest.raises(HostError, match=r"environment [0-3], worker [0-3], step 1: step: RuntimeError: told to"):
        fit(ppo(env), budget=Budget(iterations=9))
    assert pool_registry._POOLS == {}


@pytest.mark.program
def test_an_episode_that_cannot_begin_is_named_and_its_last_step_is_kept(tmp_path):
    once = tmp_path / "once"
    once.touch()
    env = told(2, fault="reset", episodes=1, once=str(once), log=str(tmp_path))
    _ = env.observation_space
    once.unlink()
    _, _, rows, _ = jax.device_get(program(env)(None, 0, 0))
    assert "step 0: reset: RuntimeError: told to" in str(pool_registry.find_fault())
    assert (rows.reward[rows.weight > 0] == 5).any()


@pytest.mark.program
def test_a_place_whose_step_is_under_way_is_waited_for(tmp_path):
    """Where its lease begins anew, is given back, or its evaluation leaves it."""
    env = slow(3, tmp_path, 0.4)
    run = program(env)
    envs, _, _, _ = jax.device_get(run(None, 0, 0))
    pool, late = pool_registry.get_pool(env), envs.env_state.pending
    assert late.sum() == 1
    leased = pool.active_leases
    anew = envs.replace(env_state=envs.env_state.replace(lease=np.where(late, -1, 1) * envs.env_state.lease))
    after, _, rows, filled = jax.device_get(run(anew, 1, 0))
    assert pool_registry.find_fault() is None
    np.testing.assert_array_equal(rows.obs[0, :, 1][filled > 0], np.where(late, 0, 12 % 5)[filled > 0])
    assert pool.active_leases == leased
    assert after.env_state.pending.sum() == 1
    pool_registry.release_unused((), max(leased))
    assert pool.active_leases == ()
    _, _, rows, filled = jax.device_get(run(None, 2, 0))
    assert pool_registry.find_fault() is None
    np.testing.assert_array_equal(rows.obs[0, :, 1], 0)
    assert (filled == STEPS).sum() == 3


def ppo(env, **settings):
    agent = PPO(hidden=(8,))
    sizes = {"num_envs": NUM_ENVS, "num_steps": 6, "batch_size": 12, "num_epochs": 1, "eval_episodes": 2}
    return OnPolicy(env, agent, **sizes | settings)


@pytest.mark.program
def test_on_policy_learns_from_the_probabilities_of_the_policy_that_acted(tmp_path):
    workflow = ppo(slow(3, tmp_path, 0.4), normalize_observations=False, normalize_values=False)
    state = workflow.init(jax.random.key(0))
    step = jax.jit(lambda state, key: workflow.collect(state, key)[:2])
    before, _ = step(state, jax.random.key(1))
    late = np.asarray(before.envs.env_state.pending)
    assert late.sum() == 1
    moved = jax.tree.map(
        lambda x: x - 9 * jax.random.normal(jax.random.key(x.size), x.shape), before.agent.actor.params
    )
    moved = replace(before.agent, actor=replace(before.agent.actor, params=moved))
    time.sleep(0.5)
    after, rollout = step(before.replace(agent=moved, iteration=jnp.int32(1)), jax.random.key(2))
    now, then = (workflow.agent.apply(x.actor.params, rollout.obs) for x in (moved, before.agent))
    sample = rollout.extras["sample"]
    batch = workflow.build_batch(after, replace(rollout, weight=None))
    of_each = [policy[0].log_prob(sample) for policy in (then, now)]
    carried = np.zeros(rollout.weight.shape, bool)
    carried[0] = late
    here = np.asarray(rollout.weight > 0)
    np.testing.assert_allclose(batch.log_prob[here], np.where(carried, *of_each)[here], rtol=1e-4)
    np.testing.assert_allclose(batch.value[here], now[1][here], rtol=1e-4)
    assert np.abs(of_each[0] - of_each[1])[carried].min() > 0.01


@pytest.mark.program
def test_a_training_of_two_seeds_counts_what_was_answered():
    result = fit(ppo(told(2, length=5)), budget=Budget(iterations=4), evaluations=2, num_seeds=2)
    steps = [row["env_steps"] for row in result.rows if row["kind"] == "train"][-1]
    assert 4 * 6 * (NUM_ENVS - 1) <= steps <= 4 * 6 * NUM_ENVS  # of each
    assert result.rows[-1]["return"] == 15
    assert pool_registry._POOLS == {}


@pytest.mark.program
def test_what_is_stored_over_several_steps_is_of_one_env(tmp_path):
    env = slow(3, tmp_path, 0.02)
    agent = DQN(hidden=(8,))
    sizes = {"num_envs": NUM_ENVS, "num_steps": 4, "num_updates": 2, "batch_size": 4, "capacity": 400, "scan_length": 4}
    workflow = OffPolicy(env, agent, n_step=3, random_steps=8, eval_episodes=2, **sizes)
    state = fit(workflow, budget=Budget(iterations=12), evaluations=2).state
    rows = jax.device_get(state.replay.gather_rows(jnp.arange(int(state.replay.size))))
    assert len(rows.reward) > 100
    seed, step = rows.obs.T
    count = rows.extras["steps"]
    reach = np.arange(3) < count[:, None]
    np.testing.assert_array_equal(rows.reward, np.where(reach, step[:, None] + 1 + np.arange(3), 0))
    np.testing.assert_array_equal(rows.next_obs, np.stack([seed, step + count], 1))
    np.testing.assert_array_equal((count < 3) | (step + count == 5), rows.truncated)
    assert len({(a, b) for a, b in rows.obs.tolist()}) == len(seed)


@pytest.mark.program
def test_sequences_are_of_one_env(tmp_path):
    env = slow(3, tmp_path, 0.02)
    agent = DQN(hidden=(8,))
    sizes = {"num_envs": NUM_ENVS, "num_steps": 4, "num_updates": 2, "batch_size": 4, "capacity": 480, "scan_length": 4}
    replay = SequenceReplay(3, 1, 1, alpha=0)
    workflow = OffPolicy(env, agent, random_steps=16, replay=replay, eval_episodes=2, **sizes)
    state = fit(workflow, budget=Budget(iterations=12), evaluations=1).state
    rows = state.replay.sample(jax.random.key(0), (500,)).rows
    k, ends = np.asarray(rows.obs[..., 1]), np.asarray(rows.truncated)
    np.testing.assert_array_equal(rows.next_obs[..., 1], k + 1)
    np.testing.assert_array_equal(rows.obs[1:][~ends[:-1]], rows.next_obs[:-1][~ends[:-1]])
    assert (rows.obs[1:, :, 1][ends[:-1]] == 0).all()


@pytest.mark.program
def test_windows_of_envs_that_are_not_in_step():
    row = Transition(jnp.float32(0), jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.bool_(False), jnp.bool_(False))
    both, alone = NStepWindow.empty(2, 2, row, True, True), [NStepWindow.empty(2, 1, row, True) for _ in range(2)]
    for round, counts in enumerate(([3, 1], [2, 4], [0, 3])):
        t = jnp.arange(4.0)[:, None] + 10 * round + jnp.array([0.0, 100.0])
        ends = (t % 7) == 3
        rows = Transition(t, t.astype(jnp.int32), t, t + 1, ends, ~ends & False)
        missing = jnp.array([[False, False], [False, True], [False, False], [False, False]])
        both, longer, there = both.push(rows, jnp.array(counts), missing)
        for index, count in enumerate(counts):
            own = jax.tree.map(lambda x, index=index: x[:, index : index + 1], (rows, missing))
            alone[index], expected, here = alone[index].push(own[0], jnp.int32(count), own[1])
            np.testing.assert_array_equal(there[:, index], here[:, 0])
            found = jnp.array(np.flatnonzero(here[:, 0]))
            mine = tree.index(longer, (found, jnp.array([index])))
            assert leaves_equal(mine, tree.index(expected, (found, jnp.array([0]))))


@pytest.mark.program
def test_policy_search_and_evaluations_play_whole_episodes_as_in_lockstep():
    found = []
    for batch in (0, 3):
        env = HostEnv("CartPole-v1", workers=2, max_episode_steps=20, batch=batch)
        policy = MLPPolicy((4,))
        result = fit(
            Evolution(env, policy, OpenES(4), normalization="none"), budget=Budget(iterations=2), evaluations=1
        )
        found.append([(row["return"], row["env_steps"], row["episodes"]) for row in result.rows])
        assert pool_registry._POOLS == {}
    assert found[0] == found[1]


@pytest.mark.program
def test_members_share_a_call(monkeypatch):
    """Of the rows of all, a share is waited for; each member's play ends by its own environments."""
    asked, turn = [], pool_registry.LeasePool.step_batch
    monkeypatch.setattr(
        pool_registry.LeasePool,
        "step_batch",
        lambda self, *given: asked.append((len(given[1]), given[0].wait_fraction)) or turn(self, *given),
    )
    workflow = Vmapped(ppo(told(3, length=4)), 2)
    state = jax.jit(workflow.init)(jax.random.key(0))
    step, copy = jax.jit(workflow.step), jax.jit(workflow.copy_members)
    for i in range(3):
        state, metrics = step(state, jax.random.key(i))
        assert (metrics["env_steps"] >= 6 * 2).all()
        state = copy(state, jnp.array([1, 1])) if i == 1 else state
    assert pool_registry.find_fault() is None
    assert set(asked) == {(2 * NUM_ENVS, 0.75)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": -1, "workers": 1}, "batch=-1: must not be negative"),
        ({"batch": 2}, "batch=2: needs env.workers=1 or more"),
    ],
)
def test_refuses_in_one_line(given, said):
    with pytest.raises(OptionError, match=said):
        HostEnv("CartPole-v1", **given)


def test_refuses_what_does_not_go_together():
    with pytest.raises(OptionError, match=r"env\.batch=5: must be at most the number of environments, 4"):
        fit(ppo(told(5)), budget=Budget(iterations=1))
    with pytest.raises(OptionError, match=r"env\.batch=2: must be 0 with a wrapper that takes several steps in one"):
        fit(ppo(ActionRepeat(told(2), 2)), budget=Budget(iterations=1))


@pytest.mark.smoke
def test_td3_learns_of_plain_rows():
    env = HostEnv("tests.hosted:Walk-v0", workers=2, batch=2)
    agent = TD3(hidden=(8, 8))
    sizes = {
        "num_envs": NUM_ENVS,
        "num_steps": 2,
        "num_updates": 2,
        "batch_size": 8,
        "capacity": 200,
        "random_steps": 8,
    }
    state = fit(OffPolicy(env, agent, eval_episodes=2, **sizes), budget=Budget(iterations=5), evaluations=1).state
    rows = jax.device_get(state.replay.gather_rows(jnp.arange(int(state.replay.size))))
    at, action = rows.obs[:, 0], rows.action[:, 0]
    np.testing.assert_allclose(rows.reward, at - (action - 0.4 * at) ** 2, atol=1e-5)
    np.testing.assert_allclose(rows.next_obs[:, 0], at + 0.3, atol=1e-6)
