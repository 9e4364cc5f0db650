"""Demonstrations: what is recorded, read and preloaded, and what behaviour cloning makes of it."""

import pickle
from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from evorl import DQN, TD3, Budget, OffPolicy, fit, tree
from evorl.agents import BC, fill_spaces
from evorl.cli import play, train
from evorl.envs.suites.gymnax import Gymnax
from evorl.errors import OptionError
from evorl.networks.distributions import Head
from evorl.replay import FrameReplay, PrioritizedReplay, SequenceReplay
from evorl.spaces import Box, Discrete, MultiDiscrete
from evorl.training import demonstrations, episodes
from evorl.training.demonstrations import FIELDS
from evorl.training.policy import Policy
from evorl.training.records.checkpoint import Checkpoints
from evorl.types import Transition
from tests.contract_cases import CEM_RL
from tests.tiny import CHOICES, ENV

CARTPOLE = Gymnax("CartPole-v1")
SMALL = {"num_envs": 4, "batch_size": 8, "capacity": 100, "eval_episodes": 4, "random_steps": 20}


def make_rows(n=30, seed=0):
    """Return transitions of CartPole with distinct observations."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(2, n, 4)).astype(np.float32)
    action, reward, flags = rng.integers(0, 2, n, np.int32), np.ones(n, np.float32), rng.random((2, n)) < 0.1
    return Transition(obs[0], action, reward, obs[1], flags[0], flags[1] & ~flags[0])


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (Box(-2.0, 6.0, (2, 2)), np.array([[[0.0, 5.0], [-1.5, 2.0]]], np.float32)),
        (Discrete(3, 5), np.array([5, 7], np.int32)),
        (MultiDiscrete((3, 4), (1, 0)), np.array([[1, 3], [3, 0]], np.int32)),
    ],
)
@pytest.mark.parametrize("kind", ["normal", "tanh_normal"])
def test_the_sample_of_an_action_gives_the_action(space, action, kind):
    head = Head(space, kind)
    np.testing.assert_allclose(head.to_action(head.from_action(jnp.asarray(action))), action, atol=1e-3)


def test_the_loss_of_choices_is_that_of_the_book():
    agent, rows = fill_spaces(BC(hidden=(8,)), CARTPOLE), make_rows()
    state = agent.init(jax.random.key(0))
    params = state.actor.params
    rows = jax.tree.map(jnp.asarray, rows)
    logits = np.asarray(agent.policy(params, rows.obs).log_probs())
    expected = -special.log_softmax(logits, 1)[np.arange(30), rows.action].mean()
    loss, metrics = agent.critic_loss(params, state, rows, jax.random.key(0))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert metrics["actor_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_real_actions_is_that_of_a_normal_distribution():
    env = Gymnax("Pendulum-v1")  # actions from -2 to 2
    agent, rng = fill_spaces(BC(hidden=(8,)), env), np.random.default_rng(0)
    obs, action = rng.normal(size=(20, 3)).astype(np.float32), rng.uniform(-2, 2, (20, 1)).astype(np.float32)
    state = agent.init(jax.random.key(0))
    params = state.actor.params
    mean = np.asarray(agent.policy(params, jnp.asarray(obs)).mode())
    rows = jax.tree.map(jnp.asarray, Transition(obs, action, np.zeros(20), obs, np.zeros(20, bool), np.zeros(20, bool)))
    loss, _ = agent.critic_loss(params, state, rows, jax.random.key(0))
    assert loss == pytest.approx(-stats.norm.logpdf(action / 2, mean, 1).mean(), rel=1e-5)


def test_recorded_episodes_are_whole_and_in_order():
    env = Gymnax("CartPole-v1", max_episode_steps=12)
    workflow = OffPolicy(env, DQN(hidden=(8,)), **SMALL)
    policy = Policy(workflow, workflow.init(jax.random.key(0)))
    rows = demonstrations.record_episodes(policy, 20, seed=3)  # more than are played at once
    ends = np.flatnonzero(rows.terminated | rows.truncated)
    assert len(ends) == 20
    assert ends[-1] == len(rows.reward) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    inside = np.setdiff1d(np.arange(1, len(rows.reward)), starts)
    np.testing.assert_array_equal(rows.obs[inside], rows.next_obs[inside - 1])
    np.testing.assert_array_equal(policy(rows.obs), rows.action)
    assert (np.abs(rows.obs[starts]) <= 0.05).all()  # where CartPole begins
    lengths = ends + 1 - starts
    assert (rows.truncated[ends] == (lengths == 12)).all()


def test_a_file_gives_back_what_was_written(tmp_path):
    rows = make_rows()
    demonstrations.write_demonstrations(tmp_path / "rows.npz", rows)
    found = demonstrations.read_demonstrations(tmp_path / "rows.npz", CARTPOLE)
    jax.tree.map(np.testing.assert_array_equal, found, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((30, 3), np.float32)}, r"obs is float32 \[30, 3\], must be float32 \[30, 4\]"),
        ({"action": np.zeros(30)}, r"action is float64 \[30\], must be int32 \[30\]"),
        ({"reward": np.full(30, np.nan, np.float32)}, "reward contains NaN or infinity"),
        ({"terminated": np.zeros(0, bool)}, "has no transitions"),
        (
            {"more": np.zeros(1)},
            "must contain action, next_obs, obs, .*; it contains action, more",
        ),
        ({"obs": np.array([{}] * 30)}, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_a_wrong_file_is_one_line(change, message, tmp_path):
    rows, path = make_rows(), tmp_path / "rows.npz"
    np.savez(path, **({name: getattr(rows, name) for name in FIELDS} | change))
    with pytest.raises(OptionError, match=message) as error:
        demonstrations.read_demonstrations(path, CARTPOLE)
    assert "\n" not in str(error.value)


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    rows, path = make_rows(), tmp_path / "rows.npz"
    demonstrations.write_demonstrations(path, rows)
    monkeypatch.setattr(demonstrations, "memory_limit", lambda: 1000)
    with pytest.raises(OptionError, match="kB: must be smaller than the memory, 1 kB"):
        demonstrations.read_demonstrations(path, CARTPOLE)


def test_a_pickle_is_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return (tmp_path / "harm").touch, ()

    (tmp_path / "rows.npz").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(OptionError, match="cannot be read"):
        demonstrations.read_demonstrations(tmp_path / "rows.npz", CARTPOLE)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "replay", [OffPolicy.replay, PrioritizedReplay(), FrameReplay(1)], ids=lambda x: type(x).__name__
)
def test_a_replay_buffer_holds_each_transition_once(replay):
    rows = make_rows(30)  # of 4 environments, so that the last rows are padded
    workflow = OffPolicy(CARTPOLE, DQN(hidden=(8,)), replay=replay, **SMALL)
    state = workflow.init(jax.random.key(0))
    filled = jax.jit(lambda state, rows: demonstrations.preload_replay(workflow, state, rows))(state, rows)
    assert filled.replay.size == 30
    drawn = filled.replay.sample(jax.random.key(1), (3000,)).rows
    found = {tuple(np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(drawn)])) for i in range(3000)}
    whole = tree.zeros_like(jax.eval_shape(lambda: tree.index(drawn, slice(30))))
    wanted = {name: getattr(rows, name) for name in FIELDS}
    expected = jax.tree.leaves(whole.replace(**wanted))
    assert found == {tuple(np.concatenate([np.ravel(leaf[i]) for leaf in expected])) for i in range(30)}


def test_frames_of_demonstrations_are_laid_out_for_the_environments_of_a_population():
    workflow = replace(CEM_RL, replay=FrameReplay(1))
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    row = jax.eval_shape(lambda state: state.replay.sample(jax.random.key(0), (6,)).rows, state)
    rows = Transition(**{name: np.zeros(getattr(row, name).shape, getattr(row, name).dtype) for name in FIELDS})
    filled = jax.eval_shape(lambda state: demonstrations.preload_replay(workflow, state, rows), state)
    assert jax.tree.structure(filled) == jax.tree.structure(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 3}, "preload=n_step=3: must be n_step=1"),
        ({"capacity": 29, "batch_size": 4}, "preload=30 transitions: capacity=29 is too small"),
        (
            {"replay": SequenceReplay(2, 1), "capacity": 1000},
            "preload=SequenceReplay: must be a replay buffer of single transitions",
        ),
    ],
)
def test_a_replay_buffer_that_does_not_fit_is_named(options, message):
    workflow = OffPolicy(CARTPOLE, DQN(hidden=(8,)), **(SMALL | options))
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    with pytest.raises(OptionError, match=message):
        jax.eval_shape(lambda state: demonstrations.preload_replay(workflow, state, make_rows()), state)


@pytest.mark.program
def test_without_demonstrations_nothing_is_learned_from():
    with pytest.raises(OptionError, match="num_steps=0: needs demonstrations; use preload=FILE"):
        fit(OffPolicy(CHOICES, BC(hidden=(8,)), num_steps=0, **SMALL), budget=Budget(iterations=1))


@pytest.mark.program
def test_a_run_whose_checkpoint_has_no_replay_buffer_does_not_learn_from_nothing(tmp_path):
    workflow = OffPolicy(CHOICES, BC(hidden=(8,)), num_steps=0, num_updates=2, policy_delay=1, **SMALL)
    like = jax.eval_shape(lambda key: workflow.init(key).replay.sample(key, (10,)), jax.random.key(0)).rows
    rows = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    for iterations in (1, 2):
        with closing(Checkpoints(tmp_path, replay=False)) as checkpoints:
            given = {"evaluations": 1, "checkpoints": checkpoints}
            if iterations == 1:
                fit(workflow, budget=Budget(iterations=1), demonstrations=rows, **given)
                continue
            with pytest.raises(OptionError, match="num_steps=0: needs demonstrations"):
                fit(workflow, budget=Budget(iterations=2), **given)


@pytest.mark.program
def test_an_expert_is_cloned_from_the_command_line(tmp_path, monkeypatch, capsys):
    """The expert moves the cart to where the pole leans, which balances for some 200 steps; random actions for 22."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-0.2, 0.2, (2000, 4)).astype(np.float32)
    action, flags = (obs[:, 2] + obs[:, 3] > 0).astype(np.int32), np.zeros(2000, bool)
    monkeypatch.chdir(tmp_path)
    rows = Transition(obs, action, np.ones(2000, np.float32), obs, flags, flags)
    demonstrations.write_demonstrations(tmp_path / "expert.npz", rows)
    given = ["agent=bc", "env=cartpole", "preload=expert.npz", "iterations=30", "hidden=[32]", "num_seeds=2"]
    train.main([*given, "evaluations=1", "tensorboard=false", "eval_episodes=16", "run_dir=clone"])
    assert "error" not in capsys.readouterr().err
    play.main(["clone", "episodes=8", "record=again.npz", "out=null", "seed=1"])
    found = demonstrations.read_demonstrations(tmp_path / "again.npz", CARTPOLE)
    assert len(found.reward) / 8 > 100
    assert (found.action == (found.obs[:, 2] + found.obs[:, 3] > 0)).mean() > 0.9
    assert "preload: expert.npz" in (tmp_path / "clone" / "config.yaml").read_text()


@pytest.mark.program
def test_an_agent_that_also_acts_begins_with_a_full_buffer():
    """Nothing is random, and the newest rows follow the demonstrations."""
    workflow = OffPolicy(ENV, TD3(hidden=(8, 8)), num_steps=2, num_updates=2, **SMALL | {"num_envs": 2})
    state = workflow.init(jax.random.key(0))
    rows = jax.tree.map(np.asarray, state.replay.sample(jax.random.key(0), (10,)).rows)
    training = fit(workflow, budget=Budget(iterations=1), demonstrations=rows, num_seeds=2, evaluations=1)
    np.testing.assert_array_equal(training.state.replay.size, [14, 14])


def test_a_budget_that_is_never_reached_is_refused():
    workflow = OffPolicy(CHOICES, BC(hidden=(8,)), num_steps=0, **SMALL | {"random_steps": 0})
    why = "is never reached, because an iteration takes no env steps; use iterations or minutes"
    for name in ("env_steps", "episodes"):
        with pytest.raises(OptionError, match=f"{name}=100: {why}"):
            fit(workflow, budget=Budget(**{name: 100}))


def test_episodes_are_scanned_in_blocks_until_all_have_ended(monkeypatch):
    monkeypatch.setattr(episodes, "STEPS_PER_BLOCK", 4)
    calls = []

    def scan(carry, keys):
        calls.append(len(keys))
        return carry + len(keys), carry + np.arange(len(keys))

    found = episodes.scan_until(scan, 0, jax.random.split(jax.random.key(0), 10_000), lambda x: x[-1] >= 9)
    np.testing.assert_array_equal(found, range(12))
    assert calls == [4, 4, 4]
    assert len(episodes.scan_until(scan, 0, jax.random.split(jax.random.key(0), 6), lambda x: False)) == 6
