import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import DQN, CartPole, OffPolicy, tree
from evorl.agents import PPO, MLPPolicy
from evorl.ec.openes import OpenES
from evorl.envs.actions import ActionRepeat
from evorl.envs.host import EnvPool, HostEnv, pool_registry
from evorl.envs.observations import TimeLimit
from evorl.envs.wrappers import FrameStack, LinearReward
from evorl.errors import HostError, OptionError
from evorl.n_step import NStepWindow
from evorl.networks import GRU
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.training.records.checkpoint import Checkpoints
from evorl.types import Transition
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, TransitionStore, hosts, rollout
from evorl.workflows import Evolution, OnPolicy, Vmapped, segments
from evorl.workflows.sampling import Shuffled
from tests.conftest import leaves_equal
from tests.tiers import program_fixture

LIMIT = 30


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    pool_registry.close_all()


@program_fixture
def seeds(monkeypatch):
    """Of every environment the seeds of its episodes in turn."""
    found = {}
    begin = pool_registry.LeasePool.reset

    def begun(self, acts, leaves, lease, numbers):
        for row in np.flatnonzero(acts & ~leaves).tolist():
            found.setdefault(row, []).append(int(numbers[row]))
        return begin(self, acts, leaves, lease, numbers)

    monkeypatch.setattr(pool_registry.LeasePool, "reset", begun)
    return found


def told(workers=0, timeout_seconds=60.0, restart=False, **options):
    return HostEnv("tests.hosted:Told-v0", options, workers, timeout_seconds, restart)


def played(env, n, steps, plan=None, envs=None, key=0):
    """What n environments do at random: they, their stats, the rows of so many steps and a mask, leaves [steps, n]."""
    world = EnvBatch(env, env.default_params, None, n)

    def at_random(obs, memory, keys):
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def begin():
        keys = jax.random.split(jax.random.key(0), n)
        envs = world.init_envs(world.reset(keys))
        return envs, world.interact(at_random, envs, keys)[1]

    @jax.jit
    def run(key, envs):
        none = tree.broadcast(tree.zeros_like(jax.eval_shape(begin)[1]), steps), jnp.zeros((steps, n), bool)
        store = TransitionStore(steps, none, lambda _, rows, mask: (rows, mask))
        return rollout(world, at_random, plan or RolloutPlan(ResetStarts(), steps=steps), envs, key, store)

    envs = tree.zeros_like(jax.eval_shape(begin)[0]) if envs is None else envs
    return run(jax.random.key(key), envs)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_cartpole_is_what_gymnasium_plays_bit_for_bit(workers, seeds):
    env = HostEnv("CartPole-v1", workers=workers, max_episode_steps=LIMIT)
    _, stats, (rows, mask) = jax.device_get(played(env, 3, 60))
    assert mask.all()
    plain = gymnasium.make("CartPole-v1", LIMIT)
    for index in range(3):
        count, obs = 0, plain.reset(seed=seeds[index][0])[0]
        for t in range(60):
            np.testing.assert_array_equal(rows.obs[t, index], obs)
            obs, reward, terminated, truncated, _ = plain.step(int(rows.action[t, index]))
            np.testing.assert_array_equal(rows.next_obs[t, index], obs)  # the true one at an end too
            said = rows.reward[t, index], rows.terminated[t, index], rows.truncated[t, index]
            assert said == (np.float32(reward), terminated, truncated and not terminated)
            if (terminated or truncated) and t < 59:
                count += 1
                obs = plain.reset(seed=seeds[index][count])[0]
        assert stats.episodes[index] == count + (terminated or truncated)
    assert len({seed for own in seeds.values() for seed in own}) == sum(map(len, seeds.values()))


@pytest.mark.program
@pytest.mark.parametrize("workers", [0, 1])
def test_values_of_any_nesting_go_and_return(workers):
    env = HostEnv("tests.hosted:Nested-v0", workers=workers)
    _, stats, (rows, mask) = jax.device_get(played(env, 2, 8))
    assert mask.all()
    assert leaves_equal(rows.next_obs, rows.action)
    np.testing.assert_array_equal(stats.returns, [8, 8])


@pytest.mark.program
def test_envs_go_on_where_they_were_and_a_step_is_taken_once():
    env = told(length=7)
    envs, _, (before, _) = played(env, 2, 4)
    after, _, (rows, mask) = played(env, 2, 2, RolloutPlan(ResetStarts(), False, steps=2), envs, 1)
    np.testing.assert_array_equal(before.next_obs[-1], rows.obs[0])
    np.testing.assert_array_equal(rows.obs[:, :, 1], [[4, 4], [5, 5]])
    np.testing.assert_array_equal(after.env_state.lease, envs.env_state.lease)
    assert pool_registry.find_fault() is None
    _, stats, (_, mask) = played(env, 2, 2, RolloutPlan(ResetStarts(), False, steps=2), envs, 2)
    assert not mask.any()
    assert stats.steps.sum() == 0
    lease = int(envs.env_state.lease[0])
    why = f"step: rejected, step 5 of lease {lease} is not the next step of this lease"
    assert str(pool_registry.find_fault()) == f"environment 0, in this process, step 5: {why}"


@pytest.mark.program
def test_an_evaluation_has_environments_of_its_own_and_gives_them_back():
    env = told(length=6)
    envs, _, _ = played(env, 2, 3)
    leased = pool_registry.get_pool(env).active_leases
    left, stats, _ = played(env, 2, 6, RolloutPlan(ResetStarts(), True, episodes=2, releases=True), envs, 5)
    np.testing.assert_array_equal(stats.lengths, [12, 12])
    assert not left.env_state.lease.any()
    assert pool_registry.get_pool(env).active_leases == leased
    _, _, (rows, _) = played(env, 2, 1, RolloutPlan(ResetStarts(), False, steps=1), envs, 6)
    np.testing.assert_array_equal(rows.obs[0, :, 1], [3, 3])


@pytest.mark.program
def test_envs_without_a_lease_or_after_an_end_begin_anew():
    env = told(length=4)
    envs, _, _ = played(env, 2, 4)
    assert (envs.env_state.lease < 0).all()
    half = envs.replace(env_state=envs.env_state.replace(lease=envs.env_state.lease * jnp.array([1, 0])))
    after, _, (rows, mask) = played(env, 2, 2, RolloutPlan(ResetStarts(), False, steps=2), half, 1)
    np.testing.assert_array_equal(rows.obs[:, :, 1], [[0, 0], [1, 1]])
    kept, new = after.env_state.lease
    assert kept == -envs.env_state.lease[0]
    assert new > -envs.env_state.lease[1]
    assert mask.all()


def test_only_envs_that_act_are_touched(tmp_path):
    env = told(length=3, log=str(tmp_path))
    plan = RolloutPlan(ResetStarts(), True, episodes=jnp.array([1, 3]), releases=True)
    _, stats, _ = played(env, 2, 12, plan)
    said = sorted(tuple(line.split()[0] for line in file.read_text().splitlines()) for file in tmp_path.iterdir())
    once = ("reset", "step", "step", "step")
    assert said == [once, once * 3]
    np.testing.assert_array_equal(stats.steps, [3, 9])


def test_one_call_serves_all_vmapped_copies(monkeypatch):
    env, rows = told(length=5), []
    step = pool_registry.LeasePool.step
    monkeypatch.setattr(
        pool_registry.LeasePool, "step", lambda self, acts, *rest: rows.append(len(acts)) or step(self, acts, *rest)
    )
    world = EnvBatch(env, env.default_params, None, 3)

    def run(key):
        store = TransitionStore(5, None, lambda *_: None)
        policy = lambda obs, memory, keys: (jax.vmap(env.action_space.sample)(keys), memory, {})  # noqa: E731
        return rollout(world, policy, RolloutPlan(ResetStarts(), steps=5), None, key, store)[1].returns

    found = jax.jit(jax.vmap(jax.vmap(run)))(jax.random.split(jax.random.key(0), (2, 2)))
    np.testing.assert_array_equal(found, np.full((2, 2, 3), 15.0))
    assert rows == [12] * 5


@pytest.mark.program
def test_wrappers_that_end_episodes_or_take_several_steps_touch_what_they_must(tmp_path):
    env = FrameStack(ActionRepeat(TimeLimit(told(length=5, log=str(tmp_path)), 4), 3), 2)
    _, _, (rows, mask) = played(env, 1, 4)
    assert mask.all()
    np.testing.assert_array_equal(rows.obs[:, 0, :, 1], [[0, 0], [0, 3], [0, 0], [0, 3]])
    np.testing.assert_array_equal(rows.next_obs[:, 0, :, 1], [[0, 3], [3, 4], [0, 3], [3, 4]])
    np.testing.assert_array_equal(rows.truncated[:, 0], [False, True] * 2)
    envs, _, _ = played(env, 1, 2)
    _, _, (rows, _) = played(env, 1, 1, RolloutPlan(ResetStarts(), False, steps=1), envs, 1)
    np.testing.assert_array_equal(rows.obs[0, 0, :, 1], [0, 0])
    first, *_ = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    said = [line.split()[0] for line in first.read_text().splitlines()]
    assert said[:10] == ["reset", *["step"] * 4] * 2


FAULTS = {
    "constructor": "step 0: constructor: RuntimeError: told to",
    "reset": "step 0: reset: RuntimeError: told to",
    "step": "step 1: step: RuntimeError: told to",
    "shape": "step 1: step: ValueError: the observation has shape [3], not [2]",
    "dtype": "step 1: step: ValueError: the observation has dtype complex64, not float32",
    "nan": "step 1: step: the observation is NaN",
    "reward": "step 1: step: the reward is NaN",
    "kill": "step 1: worker 0 has ended by SIGKILL",
    "exit": "step 1: worker 0 has ended with exit code 3",
    "hang": "step 1: no answer for 0.5 s",
}


@pytest.mark.program
@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_is_masked_and_named(fault, tmp_path):
    workers = int(fault in ("kill", "exit", "hang"))
    once = tmp_path / "once"
    once.touch()  # so that what is made to be looked at does not fail
    env = told(workers, 0.5, fault=fault, once=str(once))
    _ = env.observation_space
    once.unlink()
    _, stats, (rows, mask) = played(env, 1, 4)
    where = "worker 0" if workers else "in this process"
    assert str(pool_registry.find_fault()) == f"environment 0, {where}, {FAULTS[fault]}"
    np.testing.assert_array_equal(mask[:, 0], np.arange(4) < int(FAULTS[fault][5]))
    np.testing.assert_array_equal(stats.steps, mask.sum(0))
    assert rows.truncated[0, 0] == (FAULTS[fault][5] == "1")  # from there on nothing is known


@pytest.mark.program
@pytest.mark.parametrize("fault", ["reset", "step", "nan", "kill", "hang"])
def test_with_restart_an_environment_begins_anew_and_the_episode_is_cut(fault, tmp_path):
    workers, once = int(fault in ("kill", "hang")), tmp_path / "once"
    env = told(workers, 0.5, True, fault=fault, once=str(once))
    _, stats, (rows, mask) = played(env, 1, 7)
    assert pool_registry.find_fault() is None
    failed = fault != "reset"
    np.testing.assert_array_equal(mask[:, 0], [True, not failed, *[True] * 5])
    assert stats.restarts.sum() == failed
    assert stats.metrics()["restarts"] == failed
    np.testing.assert_array_equal(rows.obs[:, 0, 1], [0, 1, 0, 1, 2, 3, 4] if failed else [0, 1, 2, 3, 4, 0, 1])
    np.testing.assert_array_equal(stats.lengths, 5)
    assert rows.truncated[0, 0] == failed
    assert len(set(rows.obs[[0, 2], 0, 0].tolist())) == 1 + failed  # its seed is another one


def ppo(env, **settings):
    agent = PPO(hidden=(8,))
    sizes = {"num_envs": 2, "num_steps": 4, "batch_size": 8, "num_epochs": 1, "eval_episodes": 2}
    return OnPolicy(env, agent, **sizes | settings)


@pytest.mark.program
def test_a_training_ends_at_the_state_before_what_has_failed(tmp_path):
    """Each environment fails in the third episode after that of the evaluation, after two of six steps: in the fourth
    iteration of four.
    """
    whole = fit(ppo(told(length=6)), budget=Budget(iterations=3), evaluations=1)
    checkpoints, fails = Checkpoints(tmp_path), ppo(told(length=6, fault="step", episodes=3))
    with pytest.raises(
        HostError, match=r"environment [01], in this process, step 1: step: RuntimeError: told to"
    ) as found:
        fit(fails, budget=Budget(iterations=9), evaluations=1, checkpoints=checkpoints)
    assert "\n" not in str(found.value)
    assert pool_registry.find_fault() is None
    resumed = fit(ppo(told(length=6)), budget=Budget(iterations=3), checkpoints=checkpoints)
    checkpoints.close()
    assert int(resumed.state.iteration) == 3
    assert leaves_equal(resumed.state.agent, whole.state.agent)
    for one in (whole, resumed):
        assert not np.asarray(one.state.envs.env_state.lease).any()


@pytest.mark.program
def test_leases_that_no_state_holds_are_given_back():
    env = told(length=6)
    envs, _, _ = played(env, 2, 2)
    other, _, _ = played(env, 3, 2)
    held = [int(lease) for one in hosts.collect_leases((envs, other)) for lease in one]
    pool_registry.release_unused(held[:2], max(held) - 1)
    assert sorted(pool_registry.get_pool(env).active_leases) == [*held[:2], max(held)]


@pytest.mark.program
def test_a_child_keeps_its_environments_and_begins_anew():
    env = told(length=9)
    workflow = Vmapped(ppo(env), 2)
    state = workflow.init(jax.random.key(0))
    step = jax.jit(workflow.step)
    state, _ = step(state, jax.random.key(1))
    lease = state.envs.env_state.lease
    copied = jax.jit(workflow.copy_members)(state, jnp.array([0, 0]))
    np.testing.assert_array_equal(copied.envs.env_state.lease, [lease[0], -lease[1]])
    _, metrics = step(copied, jax.random.key(2))
    assert pool_registry.find_fault() is None
    np.testing.assert_array_equal(metrics["env_steps"], [8, 8])


@pytest.mark.parametrize(("wrap", "good"), [
    (lambda env: TimeLimit(env, 4), 3),
    (lambda env: TimeLimit(ActionRepeat(env, 2), 2), 1),
    (lambda env: ActionRepeat(TimeLimit(env, 4), 2), 1),
])  # fmt: skip
def test_a_step_that_fails_at_a_time_limit_is_lost(wrap, good):
    """The fourth step of each episode raises an error, and is its last one by the limit of a wrapper."""
    env = wrap(told(0, restart=True, length=9, fault="step", at=4))
    _, stats, (rows, mask) = jax.device_get(played(env, 1, 2 * (good + 1)))
    np.testing.assert_array_equal(mask[:, 0], [*[True] * good, False] * 2)
    assert (int(stats.steps[0]), int(stats.restarts[0]), int(stats.episodes[0])) == (2 * good, 2, 0)
    assert rows.truncated[good - 1, 0]  # the value of its successor is bootstrapped


def test_what_is_not_known_takes_no_part_in_learning():
    weight = jnp.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    there, some = segments.valid_segments(weight, 1)
    assert some
    assert sorted(there.tolist()) == [0, 0, 2, 3, 4, 5]
    there, some = segments.valid_segments(weight, 2)
    assert sorted(there.tolist()) == [0, 1, 2]  # step 1 of environment 1 is there
    there, some = segments.valid_segments(weight.at[1, 1].set(0), 2)
    assert sorted(there.tolist()) == [0, 0, 2]
    assert not segments.valid_segments(0 * weight, 1)[1]


@pytest.mark.program
@pytest.mark.parametrize("agent", [PPO(hidden=(8,)), PPO(hidden=(8,), core=GRU(4))])
def test_a_segment_is_learned_from_without_its_lost_and_missing_steps(agent):
    sizes = {"num_envs": 2, "num_steps": 6, "batch_size": 12, "num_epochs": 2, "eval_episodes": 2}
    workflow = OnPolicy(CartPole(), agent, sampling=Shuffled(6), **sizes)
    state = jax.jit(workflow.init)(jax.random.key(0))
    state, rollout, _ = jax.jit(workflow.collect)(state, jax.random.key(1))
    mask = jnp.ones((6, 2), bool).at[4:, 1].set(False).at[2, 0].set(False)
    lost = ~mask[:, :, None]
    cut = rollout.truncated | ~mask | jnp.roll(~mask, -1, 0)  # also before what is lost
    rollout = replace(rollout, weight=mask.astype(jnp.float32), truncated=cut)
    learn = jax.jit(lambda rollout: workflow.learn(state, rollout, jax.random.key(2))[0].agent)

    garbage = replace(rollout, obs=jnp.where(lost, 7.0, rollout.obs), reward=jnp.where(mask, rollout.reward, 99.0))
    assert leaves_equal(learn(rollout), learn(garbage))
    for env_index in (0, 1):
        other = replace(rollout, reward=rollout.reward.at[0, env_index].set(9.0))
        assert not leaves_equal(learn(rollout), learn(other))

    agent = workflow.agent
    if not agent.is_recurrent:  # whose rows need no segments
        batch = workflow.prepare_batch(state, rollout)[1]
        params = jax.tree.map(lambda x: x + 0.1, state.agent.actor.params)
        rows = jax.tree.map(lambda x: x[mask][:, None], replace(batch, weight=None))
        expected = agent.loss(params, rows)[0]
        np.testing.assert_allclose(agent.loss(params, workflow.split_batch(batch))[0], expected, rtol=1e-5)


def test_a_window_ends_before_what_is_lost():
    row = Transition(jnp.float32(0), jnp.int32(0), jnp.float32(0), jnp.float32(0), jnp.bool_(False), jnp.bool_(False))
    window = NStepWindow.empty(2, 1, row, loses=True)
    t = jnp.arange(5.0)[:, None]
    no = jnp.zeros((5, 1), bool)
    rows = Transition(t, t.astype(jnp.int32), t, t + 1, no, no)
    lost = jnp.array([[False], [False], [True], [False], [False]])
    window, longer, there = window.push(rows, jnp.int32(5), lost)
    np.testing.assert_array_equal(there[:, 0], [False, False, True, True, False])  # of starts -2 to 2
    np.testing.assert_array_equal(longer.reward[2:4, 0], [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(longer.next_obs[2:4, 0], [2, 2])
    assert longer.truncated[2:4].all()
    np.testing.assert_array_equal(window.lost_mask[:, 0], [False, False])


@pytest.mark.program
def test_a_worker_imports_no_jax_and_ends_with_its_parent(tmp_path):
    code = """
import os, sys, time, jax
from evorl.envs.actions import ActionRepeat
from evorl.envs.host import EnvPool, HostEnv, pool_registry
from evorl.envs.observations import TimeLimit
from evorl.envs.wrappers import FrameStack
env = HostEnv("tests.hosted:Told-v0", {"length": 3}, workers=2)
state, _ = env.reset(jax.random.key(0), env.default_params)
processes = pool_registry.get_pool(env).places._processes
print(*[process.popen.pid for process in processes.values()], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        maps = Path(f"/proc/{worker}/maps").read_text()
        parent.kill()
    assert "jaxlib" not in maps
    assert "numpy" in maps
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "CartPole-v3"}, "unknown gymnasium environment CartPole-v3; did you mean CartPole-v"),
        ({"name": "not_there:Env-v0"}, "No module named 'not_there'"),
        ({"name": "CartPole-v1", "options": {"sutton": 1}}, "sutton"),
        ({"name": "CartPole-v1", "workers": -1}, "workers=-1: must not be negative"),
        ({"name": "CartPole-v1", "timeout_seconds": 0}, "timeout_seconds=0: must be above 0"),
    ],
)
def test_refuses_in_one_line(given, said):
    with pytest.raises(OptionError, match=said) as found:
        HostEnv(**given)
    assert "\n" not in str(found.value)


def test_what_is_missing_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(OptionError, match=r'envpool is missing; pip install "envpool>='):
        EnvPool("CartPole-v1")


@pytest.mark.program
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("obs", ["float64", "list"])
def test_numbers_of_other_precision_and_rewards_of_one_number_are_taken(obs, workers, capfd):
    env = HostEnv("tests.hosted:Loose-v0", {"obs": obs}, workers)
    _, stats, (rows, mask) = jax.device_get(played(env, 2, 10))
    assert pool_registry.find_fault() is None
    assert mask.all()
    steps = np.array([1, 2, 3, 4, 5] * 2, np.float32)
    np.testing.assert_array_equal(rows.next_obs[:, 1], np.stack([steps, -steps], 1) / np.float32(10))
    np.testing.assert_array_equal(rows.reward[:, 1], steps)
    np.testing.assert_array_equal(stats.returns, [30, 30])
    assert capfd.readouterr().err.count("are cast to the dtype that its observation_space declares") == 1


@pytest.mark.program
@pytest.mark.parametrize("workers", [0, 1])
def test_several_objectives_are_taken_where_they_are_declared(workers):
    played(HostEnv("tests.hosted:Loose-v0", {"reward": "vector"}), 1, 2)
    assert "the reward has shape [2], not []; declare several objectives" in str(pool_registry.find_fault())
    pool_registry.close_all()
    env = HostEnv("tests.hosted:Loose-v0", {"reward": "declared"}, workers)
    _, stats, (rows, _) = jax.device_get(played(env, 2, 5))
    np.testing.assert_array_equal(rows.reward[:, 0], [[i, -i] for i in range(1, 6)])
    np.testing.assert_array_equal(stats.returns, [[15, -15]] * 2)
    with pytest.raises(OptionError, match=r"the reward has shape \[2\], must be a scalar; use LinearReward"):
        ppo(env).init(jax.random.key(0))
    _, stats, _ = jax.device_get(played(LinearReward(env, (1.0, 0.4)), 2, 5))
    np.testing.assert_allclose(stats.returns, [9, 9], rtol=1e-6)


@pytest.mark.program
@pytest.mark.parametrize(("several", "workers"), [(False, 0), (False, 1), (True, 0)])
def test_actions_are_masked_by_infos(several, workers, capfd):
    env = HostEnv("tests.hosted:Masked-v0", {"several": several}, workers, action_mask=True)
    fit(ppo(env), budget=Budget(iterations=3))
    assert pool_registry.find_fault() is None  # no action was illegal
    assert not capfd.readouterr().err.count("action_mask")
    pool_registry.close_all()
    played(HostEnv("tests.hosted:Masked-v0", {"several": several}), 2, 10)
    assert "is not legal" in str(pool_registry.find_fault())
    assert capfd.readouterr().err.count("infos of the environment contain an action_mask, which is ignored") == 1


def test_a_mask_is_of_choices():
    with pytest.raises(
        OptionError, match="action_mask=True: must be false: only discrete actions have a mask, not Box"
    ):
        HostEnv("tests.hosted:Walk-v0", action_mask=True)


@pytest.mark.program
def test_refuses_more_workers_than_envs():
    with pytest.raises(OptionError, match=r"env\.workers=3: must be at most the number of environments, 2"):
        fit(ppo(told(3)), budget=Budget(iterations=1))


@pytest.mark.program
def test_policy_search_plays_whole_episodes():
    env = told(length=3)
    workflow = Evolution(env, MLPPolicy((4,)), OpenES(4), normalization="none")
    result = fit(workflow, budget=Budget(iterations=2), evaluations=1)
    assert [row["env_steps"] for row in result.rows if row["kind"] == "train"] == [12, 24]
    assert result.rows[-1]["return"] == 6
    assert pool_registry._POOLS == {}


@pytest.mark.program
def test_demonstrations_outlast_a_failure_in_the_first_iteration(tmp_path):
    sizes = {"num_envs": 2, "num_steps": 4, "num_updates": 2, "batch_size": 4, "eval_episodes": 2, "capacity": 50}
    fails = OffPolicy(told(length=6, fault="step", episodes=1), DQN(hidden=(8,)), **sizes, random_steps=0)
    like = jax.eval_shape(lambda key: fails.init(key).replay.sample(key, (10,)), jax.random.key(0)).rows
    rows = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), like)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(HostError):
        fit(fails, budget=Budget(iterations=9), evaluations=1, checkpoints=checkpoints, demonstrations=rows)
    whole = OffPolicy(told(length=6), DQN(hidden=(8,)), **sizes, random_steps=0)
    resumed = fit(whole, budget=Budget(iterations=1), checkpoints=checkpoints)
    checkpoints.close()
    assert int(resumed.state.replay.size) == 10 + 2 * 4
