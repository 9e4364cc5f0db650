"""Trainings that begin with a run: with other numbers, or from its weights."""

import shutil
from unittest.mock import Mock

import jax
import numpy as np
import pytest
import yaml

from evorl import DQN, PBT, PPO, CartPole, Linear, OnPolicy, Vmapped
from evorl.cli import train
from evorl.errors import OptionError
from evorl.parts import bind
from evorl.training import continuation, runs
from evorl.training.changed_numbers import list_numbers, replace_numbers
from evorl.training.configuration import config, config_file
from evorl.training.driver import Driver
from evorl.workflows import OffPolicy
from tests.conftest import leaves_equal, program_fixture

SMALL = {"num_envs": 2, "num_steps": 4, "batch_size": 8, "eval_episodes": 2}
MEMBER = OnPolicy(CartPole(), PPO(hidden=(4,), max_grad_norm=0.5), **SMALL)
SIZES = ["num_envs=2", "num_steps=4", "batch_size=8", "hidden=[4]", "eval_episodes=2", "tensorboard=false"]


def test_all_numbers_of_a_workflow_and_its_members_are_listed_and_those_that_are_searched():
    pbt = list_numbers(PBT(Vmapped(MEMBER, 4)))
    assert pbt["variation.factor"] is False
    assert pbt["population.inner.agent.learning_rate"] is True  # at its default, where a prior is declared
    assert pbt["population.inner.agent.max_grad_norm"] is False
    assert list_numbers(MEMBER)["agent.learning_rate"] is False
    nested = list_numbers(PBT(Vmapped(PBT(Vmapped(MEMBER, 4), search=("clip",)), 4)))
    assert nested["population.inner.population.inner.agent.clip"] is True
    assert nested["population.inner.population.inner.agent.learning_rate"] is False


@pytest.mark.program
def test_a_state_has_other_numbers_and_is_else_as_it_was():
    pbt = PBT(Vmapped(MEMBER, 4))
    state = jax.jit(pbt.init)(jax.random.key(0))
    after = replace_numbers(pbt, state, {"variation.factor": 0.4, "population.inner.agent.max_grad_norm": 2.0})
    assert float(after.numbers["variation"]["factor"]) == np.float32(0.4)
    np.testing.assert_array_equal(after.members.numbers["agent"]["max_grad_norm"], np.full(4, 2.0))
    with pytest.raises(OptionError, match=r"unknown number variation\.facto; did you mean variation\.factor"):
        replace_numbers(pbt, state, {"variation.facto": 0.4})
    back = replace_numbers(pbt, after, {"variation.factor": 0.2, "population.inner.agent.max_grad_norm": 0.5})
    assert leaves_equal(back, state)
    traced = [jax.tree.map(lambda x: x.aval, one) for one in (state, after)]
    assert traced[0] == traced[1]  # so that no program is compiled anew


@pytest.mark.program
def test_the_numbers_of_a_schedule_change_too():
    agent = DQN(hidden=(4,), epsilon=Linear(1, 0.1, over=100))
    workflow = OffPolicy(CartPole(), agent, num_envs=2, batch_size=8, capacity=64, random_steps=0)
    state = jax.jit(workflow.init)(jax.random.key(0))
    after = replace_numbers(workflow, state, {"agent.epsilon.over": 50})
    assert float(bind(workflow, after.numbers, 25).agent.epsilon) == pytest.approx(0.55)  # half way from 1 to 0.1


@program_fixture
def run(tmp_path):
    """A training of two seeds, which are on two devices where there are two cores."""
    folder = tmp_path / "run"
    options = ["env.max_episode_steps=30", "iterations=2", "num_seeds=2", f"run_dir={folder}"]
    train.main(["agent=ppo", "env=cartpole", *SIZES, *options])
    return folder


@pytest.mark.program
def test_a_run_goes_on_with_other_numbers_which_are_kept_with_their_iterations(run, capsys):
    folder = run
    train.main([f"resume={folder}", "learning_rate=1e-4"])  # nothing is left to train, so no checkpoint holds it
    train.main([f"resume={folder}", "iterations=3"])
    state = runs.restore_run(folder, "run", "last").state
    np.testing.assert_array_equal(state.numbers["agent"]["learning_rate"], np.full(2, 1e-4, np.float32))
    train.main([f"resume={folder}", "agent.workflow.agent.learning_rate=2e-4", "clip=0.1", "iterations=4"])
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["number_changes"] == {
        "agent.workflow.agent.learning_rate": {"0": 3e-4, "2": 1e-4, "3": 2e-4},
        "agent.workflow.agent.clip": {"0": 0.2, "3": 0.1},
    }
    assert saved["agent"]["workflow"]["agent"]["learning_rate"] == 2e-4
    state = runs.restore_run(folder, "run", "last").state
    np.testing.assert_array_equal(state.numbers["agent"]["learning_rate"], np.full(2, 2e-4, np.float32))
    np.testing.assert_array_equal(state.numbers["agent"]["clip"], np.full(2, 0.1, np.float32))
    capsys.readouterr()
    for wrong, message in {
        "learning_rate=3": "agent.workflow.agent.learning_rate=3: must be between 0 and 1",
        "learning_rat=3": "unknown option learning_rat; did you mean agent.workflow.agent.learning_rate",
        "num_envs=3": "agent.workflow.num_envs=3: a resumed run keeps its configuration; only env_steps, ",
        "hidden=[3]": "agent.workflow.agent.hidden=[3]: a resumed run keeps its configuration",
        "learning_rate=abc": "agent.workflow.agent.learning_rate=abc: must be a number",
        "env.max_episode_steps=3": "env.max_episode_steps=3: a resumed run keeps its configuration",
    }.items():
        with pytest.raises(SystemExit) as stopped:
            train.main([f"resume={folder}", wrong, "iterations=9"])
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert yaml.safe_load((folder / "config.yaml").read_text()) == saved


def test_a_hyperparameter_does_not_change_to_the_default_at_which_a_population_would_search_it(tmp_path, capsys):
    data = config.to_plain_data(config.compose_config(["agent=pbt", "env=cartpole", "clip=0.1"]))
    config_file.write_config(data, tmp_path)
    with pytest.raises(SystemExit):
        train.main([f"resume={tmp_path}", "clip=0.2"])
    assert "clip=0.2: is the default, at which the population would begin to search it" in capsys.readouterr().err


@pytest.mark.program
def test_weights_of_another_run_are_saved_before_training(run, tmp_path, monkeypatch, capsys):
    child = tmp_path / "child"
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "evaluate", Mock(side_effect=OSError("No space left on device")))
        with pytest.raises(SystemExit):
            train.main([f"init_from={run}", "iterations=3", "num_seeds=2", f"run_dir={child}"])
    weights = [jax.tree.leaves(runs.restore_run(x, "run", "best").state.agent.actor.params) for x in (run, child)]
    assert leaves_equal(*weights)
    shutil.rmtree(child / "checkpoints")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train.main([f"resume={child}"])
    assert f"init_from=run: no checkpoint of {child} has it; start the run again" in capsys.readouterr().err


@pytest.mark.program
def test_a_new_run_from_weights_has_the_agent_and_environment_that_they_are_of(run, tmp_path):
    """Its numbers are its own: the parent's, or those that are given."""
    child = tmp_path / "child"
    given = ["learning_rate=${linear:1e-3,0}", "clip=0.3", "iterations=1", "num_seeds=2", "tensorboard=false"]
    train.main([f"init_from={run}", f"run_dir={child}", "env_steps=500", *given])
    saved = yaml.safe_load((child / "config.yaml").read_text())
    assert saved["env"]["max_episode_steps"] == 30
    agent = saved["agent"]["workflow"]["agent"]
    assert (agent["hidden"], agent["clip"], agent["learning_rate"]["over"]) == ([4], 0.3, 500)
    numbers = runs.restore_run(child, "run", "last").state.numbers["agent"]
    np.testing.assert_array_equal(numbers["clip"], np.full(2, 0.3, np.float32))
    np.testing.assert_array_equal(numbers["learning_rate"].start, np.full(2, 1e-3, np.float32))


@pytest.mark.parametrize(("given", "expected"), [
    (["resume=run", "learning_rate=1", "seed=3"], (["resume=run", "seed=3"], ["learning_rate=1"], ())),
    (
        ["init_from=run", "learning_rate=1", "env.length=3"],
        (["init_from=run"], ["learning_rate=1", "env.length=3"], ("agent", "env", "problem", "eval_env", "wrappers")),
    ),
    (
        ["init_from=run", "agent=ppo", "learning_rate=1", "env.length=3"],
        (
            ["init_from=run", "agent=ppo", "learning_rate=1"],
            ["env.length=3"],
            ("env", "problem", "eval_env", "wrappers"),
        ),
    ),
    (
        ["init_from=run", "env=hopper", "env.backend=mjx", "clip=0.1", "checkpoint.keep=3"],
        (["init_from=run", "env=hopper", "env.backend=mjx", "checkpoint.keep=3"], ["clip=0.1"], ("agent",)),
    ),
    (
        ["init_from=run", "wrappers=[frames]", "clip=0.1"],
        (["init_from=run", "wrappers=[frames]"], ["clip=0.1"], ("agent", "env", "problem", "eval_env")),
    ),
    (["init_from=run", "experiment=x", "clip=0.1"], (["init_from=run", "experiment=x", "clip=0.1"], [], ())),
])  # fmt: skip
def test_options_are_of_what_they_are_given_for(given, expected):
    assert continuation.split_overrides(given) == expected


def test_a_part_is_not_chosen_for_an_agent_that_is_inherited():
    with pytest.raises(OptionError, match="core: needs agent=NAME too; otherwise the agent comes from init_from"):
        continuation.split_overrides(["init_from=run", "core=gru"])
