"""Exported policies beside evorl.load's, on 1,000 observations."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import evorl
from evorl import DQN, GRU, PPO, SAC, TD3, CartPole, MLPPolicy, OffPolicy, OnPolicy, OpenES, numpy_policy
from evorl.agents import Team
from evorl.cli import export, train
from evorl.envs.arcade import Game2048
from evorl.envs.sanity import Continuous, Spaces
from evorl.errors import OptionError
from evorl.networks import S5
from evorl.networks.encoders import CNN
from evorl.spaces import to_shape_structs
from evorl.training.export import export_policy
from evorl.training.exported_policy import PolicyFile
from evorl.training.policy import Policy
from evorl.workflows import Evolution
from tests.gaming import Chase
from tests.tiers import program_fixture

ROWS = 1000
WORKFLOWS = {
    "categorical": OnPolicy(CartPole(), PPO(hidden=(8,)), normalize_observations=True),
    "masked": OnPolicy(Game2048(), PPO(hidden=(8,), activation="swish")),
    "mixed": OnPolicy(Spaces(), PPO(hidden=(8,), activation="gelu")),
    "image": OnPolicy(evorl.Maze(max_episode_steps=5), PPO(encoder=CNN(), hidden=(8,))),
    "recurrent": OnPolicy(CartPole(), PPO(hidden=(8,), core=GRU(4))),
    "s5": OnPolicy(CartPole(), PPO(hidden=(8,), core=S5(8))),
    "td3": OffPolicy(Continuous(), TD3(hidden=(8,), layer_norm=True)),
    "sac": OffPolicy(Continuous(), SAC(hidden=(8,))),
    "dqn": OffPolicy(CartPole(), DQN(hidden=(8,))),
    "evolved": Evolution(Continuous(), MLPPolicy(hidden=(8,), activation="elu"), OpenES(4)),
}


def make_policy(workflow):
    return Policy(workflow, jax.jit(workflow.init)(jax.random.key(0)))


def sample_observations(policy):
    """Observations that the environment begins with, and others around them."""
    env, keys = policy.env, jax.random.split(jax.random.key(1), ROWS)
    obs = jax.jit(jax.vmap(lambda key: env.reset(key, policy.env_params)[1]))(keys)
    rng = np.random.default_rng(0)

    def spread(x):
        noise = rng.normal(size=x.shape).astype(x.dtype) if x.dtype == np.float32 else np.zeros_like(x)
        return np.asarray(x) + noise

    return jax.tree.map(spread, obs)


def act_in_numpy(policy, obs):
    """Return what a policy in NumPy does on each row, with its memory after it."""
    rows = [jax.tree.map(lambda x, i=i: x[i], obs) for i in range(ROWS)]
    found = [policy(row) for row in rows]
    return jax.tree.map(lambda *x: np.stack(x), *found)


@pytest.mark.program
@pytest.mark.parametrize("name", WORKFLOWS)
def test_both_files_act_as_the_policy(name, tmp_path):
    policy = make_policy(WORKFLOWS[name])
    obs = sample_observations(policy)
    given = (obs, policy.initial_memory(ROWS)) if policy.is_recurrent else (obs,)
    wanted = jax.tree.leaves(policy(*given))
    export_policy(policy, tmp_path / "policy.npz")
    in_numpy = numpy_policy.load(tmp_path / "policy.npz")
    export_policy(policy, tmp_path / "policy.jaxexport")
    program = jax.export.deserialize(bytearray((tmp_path / "policy.jaxexport").read_bytes()))
    assert set(program.platforms) == {"cpu", "cuda"}
    for found in (act_in_numpy(in_numpy, obs), program.call(*given)):
        for one, other in zip(wanted, jax.tree.leaves(found), strict=True):
            if one.dtype.kind == "f":
                np.testing.assert_allclose(other, one, rtol=1e-5, atol=2e-6)
            else:  # choices, of which two may be as good but for rounding
                assert (np.asarray(other) != one).mean() < 0.005
    assert len(list(tmp_path.iterdir())) == 2


def test_the_memory_goes_on_and_begins_anew(tmp_path):
    policy = make_policy(WORKFLOWS["recurrent"])
    export_policy(policy, tmp_path / "policy.npz")
    in_numpy = numpy_policy.load(tmp_path / "policy.npz")
    memory, own = policy.initial_memory(), in_numpy.memory
    for i in range(4):
        obs = np.float32([i, 1, -i, 0.5])
        (_, memory), (_, own) = policy(obs, memory), in_numpy(obs, own)
        np.testing.assert_allclose(jax.tree.leaves(own)[0], jax.tree.leaves(memory)[0], rtol=1e-5, atol=1e-6)


def test_a_game_has_actions_by_group(tmp_path):
    policy = make_policy(OnPolicy(Chase(), Team(PPO(hidden=(8,)))))
    obs = jax.tree.map(np.asarray, Chase().reset(jax.random.key(0), None)[1])
    export_policy(policy, tmp_path / "policy.npz")
    wanted, found = policy(obs), numpy_policy.load(tmp_path / "policy.npz")(obs)
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_what_numpy_has_no_operation_for_is_named(tmp_path, monkeypatch):
    policy = make_policy(WORKFLOWS["td3"])
    monkeypatch.delitem(numpy_policy.OPERATIONS, "tanh")
    with pytest.raises(OptionError, match=r"\.npz does not support tanh; use \.jaxexport"):
        export_policy(policy, tmp_path / "policy.npz")
    with pytest.raises(OptionError, match=r"\.npz does not support erf_inv, tanh; leave out sampled=true"):
        export_policy(make_policy(WORKFLOWS["sac"]), tmp_path / "policy.npz", sampled=True)
    export_policy(policy, tmp_path / "policy.jaxexport")
    with pytest.raises(OptionError, match=r"out=.*policy\.onnx: must end with \.npz or \.jaxexport"):
        export_policy(policy, tmp_path / "policy.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.jaxexport"]


@program_fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train.main(["agent=ppo", "env=cartpole", "iterations=1", "evaluations=1", "hidden=[8]", "run_dir=run"])
    return tmp_path / "run"


@pytest.mark.program
def test_a_run_acts_where_there_is_neither_evorl_nor_jax(run, capsys):
    export.main(["run", "policy.npz"])
    assert capsys.readouterr().out.splitlines()[-1] == "policy.npz"
    shutil.copy(Path(evorl.__file__).with_name("numpy_policy.py"), "reader.py")
    code = """
import sys, reader
print(reader.load("policy.npz")([0.1, 0.2, 0.3, -0.4]), any(name in sys.modules for name in ("jax", "evorl")))
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=run.parent, env={}, capture_output=True, text=True)
    assert found.stdout.split() == [str(evorl.load(run)([0.1, 0.2, 0.3, -0.4])), "False"], found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a run directory and a file: python -m evorl.export RUN policy.npz"),
        (["run"], "run=run: give a run directory and a file"),
        (["nowhere", "policy.npz"], "run=nowhere: does not exist"),
        (["nowhere", "policy.onnx"], r"out=policy.onnx: must end with .npz or .jaxexport"),
        (["nowhere", "policy.npz", "sed=1"], "unknown option sed; did you mean seed"),
    ],
)
def test_a_wrong_command_prints_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        export.main(words)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def change_file(path, name, change):
    """Write a copy of a policy of the zoo whose arrays are changed, and return its path."""
    with np.load(Path(evorl.__file__).parent / "zoo" / name) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    return path


def test_names_of_a_foreign_front_are_escaped(tmp_path):
    def rename(arrays):
        program = json.loads(str(arrays["program"]))
        program["objectives"][0] = "=cmd|'/c calc'!A0\x1b[31m"
        return arrays | {"program": np.array(json.dumps(program))}

    front = PolicyFile(change_file(tmp_path / "front.npz", "nsga2_hopper.npz", rename)).front
    assert "\x1b" not in str(front)
    front.write_csv(tmp_path / "front.csv", False)
    assert (tmp_path / "front.csv").read_text().startswith("solution,'=cmd")


def test_a_file_with_more_than_numbers_is_no_policy(tmp_path):
    path = change_file(tmp_path / "bad.npz", "ppo_cartpole.npz", lambda arrays: arrays | {"note": np.array(b"hello")})
    with pytest.raises(OptionError, match="is not an exported policy"):
        evorl.load(path)


def test_a_policy_that_samples_needs_a_key():
    policy = evorl.load("zoo:psro_leduc")
    obs = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), to_shape_structs(policy.env.observation_space))
    with pytest.raises(OptionError, match="key=None: must be a key or a seed, since this policy samples"):
        policy(obs)
