"""python -m evorl.sweep, as a user calls it."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from evorl.cli import sweep
from evorl.errors import OptionError
from evorl.leagues import PSRO
from evorl.sweeps import worker
from evorl.sweeps.definition import open_sweep
from evorl.sweeps.store import SweepStore, get_trial_folder
from evorl.sweeps.trial_queue import StoreQueue
from evorl.sweeps.trial_training import list_metric_names
from evorl.sweeps.trials import DONE, FAILED
from evorl.training.configuration import config
from evorl.training.records.rows import read_rows
from tests.tiers import program_fixture

TINY = [
    "agent=ppo",
    "env=fast",
    "env.max_episode_steps=20",
    "evaluations=4",
    "agent.chunk=1",
    "agent.workflow.num_envs=4",
    "agent.workflow.num_steps=8",
    "agent.workflow.batch_size=32",
    "agent.workflow.num_epochs=1",
    "agent.workflow.eval_episodes=4",
    "agent.workflow.agent.hidden=[8]",
    "tensorboard=false",
    "space={}",
    "space.env_steps=${log_uniform:64,256}",
    "space.learning_rate=${log_uniform:1e-5,1e-2}",
]

EXACT = ["agent=psro_exact", "env=kuhn", "agent.workflow.capacity=4", "tensorboard=false", "space={}"]


def started(folder, *arguments):
    command = [sys.executable, "-m", "evorl.sweep", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def swept(folder, *arguments):
    with started(folder, *arguments) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


AGENT_OPTIONS = "hidden", "activation"


def compose_in(folder, *arguments):
    """Return the configuration of a training that begins in a folder."""
    with contextlib.chdir(folder):
        return config.to_plain_data(config.compose_config(arguments))


def trials(folder):
    with closing(SweepStore(folder)) as store:
        return store.read_trials()


@program_fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep of one worker that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, swept(folder, *TINY, "trials=4", "sweep_dir=s")


@pytest.mark.smoke
def test_it_sweeps_and_says_what_was_found(whole):
    folder, (code, out, err) = whole
    assert (code, err) == (0, "")
    found = trials(folder / "s")
    assert [one.state for one in found] == [DONE] * 4
    assert found[0].values == {"env_steps": 128, "agent.workflow.agent.learning_rate": 3e-4}
    top = max(found, key=lambda one: one.score)
    assert f"best: trial {top.number}, return {top.score:,.6g}" in out
    assert out.endswith("resume: python -m evorl.sweep resume=s trials=8\n")
    for one in found:
        lines = (get_trial_folder(folder / "s", one.number) / "metrics.jsonl").read_text().splitlines()
        evaluated = [row for row in map(json.loads, lines) if row["kind"] == "evaluation"]
        assert [(x.cost, x.score) for x in one.curve] == [(row["env_steps"], row["return"]) for row in evaluated]
        assert one.values["env_steps"] <= one.cost < one.values["env_steps"] + 32


def test_score_and_cost_are_numbers_of_its_rows(whole):
    store, definition = open_sweep(whole[0] / "s", (), "sweep")
    store.close()
    train, evaluation = (
        read_rows(get_trial_folder(whole[0] / "s", 0), kind).rows[0].keys() - {"kind"}
        for kind in ("train", "evaluation")
    )
    assert list_metric_names(definition) == evaluation | {f"train/{name}" for name in train}


def test_a_sweep_that_is_killed_goes_on_and_suggests_the_same(whole, tmp_path):
    process = started(tmp_path, *TINY, "trials=4", "sweep_dir=s")
    while not (get_trial_folder(tmp_path / "s", 1) / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, _, err = swept(tmp_path, "resume=s")
    assert (code, err) == (0, "")
    assert trials(tmp_path / "s") == trials(whole[0] / "s")


def test_an_interrupt_saves_and_says_how_to_go_on(whole, tmp_path):
    process = started(tmp_path, *TINY, "trials=4", "sweep_dir=s")
    while not (get_trial_folder(tmp_path / "s", 1) / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped and saved; resume: python -m evorl.sweep resume=s" in out
    assert err == "stopping after this chunk; interrupt again to stop without saving\n"
    assert swept(tmp_path, "resume=s", "workers=2")[0] == 0
    assert [one.state for one in trials(tmp_path / "s")] == [DONE] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["space.lr=[1,2]"], "unknown option space.lr; in evorl it is space.learning_rate"),
        (["space.workflow.num_env=${power_of_two:2,8}"], "unknown parameter space.workflow.num_env; did you mean"),
        (["space.clip=${uniform:-1,2}"], r"space.clip=Uniform\(low=-1.0, high=2.0\): must be between 0 and inf"),
        (["space.name=${uniform:1,2}"], "space.name=ppo: is not a number"),
        (["score=returns"], "unknown score returns; did you mean return"),
        (["score=return_dof"], "unknown score return_dof; did you mean return or return_error"),
        (["cost=env_step"], "unknown cost env_step; did you mean env_steps"),
        (["sampler=protien"], r"unknown sampler protien; did you mean protein\?"),
        (["vectorized=true"], "vectorized=True: needs vmapped above 1"),
        (["sampler=5"], "unknown sampler 5; allowed: protein, random, tpe"),
        (["sampler=null"], "unknown sampler None; allowed: protein, random, tpe"),
        (["sampler=[a]"], r"unknown sampler \['a'\]; allowed: protein, random, tpe"),
        (["space.env_steps=${uniform:0,200}"], r"space.env_steps=Uniform\(low=0.0, high=200.0\): must be above 0"),
        (["space.env_steps=${uniform:0.4,200}"], r"space.env_steps=Uniform\(low=0.4, high=200.0\): must be above 0"),
        (["space.env_steps=[-5,200]"], r"space.env_steps=Choice\(values=.*\): must be above 0"),
        (["sampler.candidate=3"], "unknown option sampler.candidate; did you mean sampler.candidates"),
        (["trials=0"], "trials=0: must be a whole number, at least 1"),
        (["run_dir=here"], "run_dir=here: is for a single training, not for a sweep"),
        (["json=true"], "json=true: is for a single training, not for a sweep"),
        (["resume=nothing"], "resume=nothing: is not a sweep, it does not exist"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=f"^{message}") as refused:
        sweep.start_or_resume_sweep([*TINY, *arguments])
    assert "\n" not in str(refused.value)
    assert not any(Path().iterdir())


def test_a_store_of_another_space_and_what_may_not_change_are_refused(whole, monkeypatch):
    monkeypatch.chdir(whole[0])
    message = "resume=s: has another search space: there env_steps is LogUniform.*256.*, here LogUniform.*512"
    with pytest.raises(OptionError, match=message):
        sweep.start_or_resume_sweep(["resume=s", "space={}", "space.env_steps=${log_uniform:64,512}"])
    with pytest.raises(OptionError, match="seed=1: a resumed sweep keeps its configuration; only trials, workers"):
        sweep.start_or_resume_sweep(["resume=s", "seed=1"])
    with pytest.raises(OptionError, match="sweep_dir=s: exists already; use resume=s to continue it"):
        sweep.start_or_resume_sweep([*TINY, "sweep_dir=s"])


@pytest.mark.program
def test_all_trials_failed_is_one_line(tmp_path):
    too_long = "space.iterations=[6,7]"
    code, _, err = swept(tmp_path, *EXACT, too_long, "sampler=random", "trials=2", "sweep_dir=s")
    assert code == 2
    assert re.fullmatch(r"error: all 2 trials have failed; the first one: iterations=[67]: must be at most 3.*\n", err)


@pytest.mark.program
@pytest.mark.parametrize("vmapped", [1, 2])
def test_a_cost_that_is_not_finite_fails_its_trial_alone(vmapped, tmp_path):
    one_episode = [*TINY, "agent.workflow.eval_episodes=1"]  # which has no standard error
    more = ["cost=return_error", "trials=2", f"vmapped={vmapped}", "sweep_dir=s"]
    code, out, err = swept(tmp_path, *one_episode, *more)
    problem = "cost=return_error: is inf after iteration 0, must be finite"
    assert [one.message for one in trials(tmp_path / "s")] == [problem] * 2
    assert (code, err) == (2, f"error: all 2 trials have failed; the first one: {problem}\n")
    assert "a worker" not in out


@pytest.mark.program
def test_vmapped_trials_equal_those_of_their_own(tmp_path):
    shared = [*TINY, "trials=5", "sampler=random", "space.workflow.num_epochs=${choice:1,2}"]
    for name, more in (("alone", []), ("vmapped", ["vmapped=3"])):
        assert swept(tmp_path, *shared, *more, f"sweep_dir={name}")[::2] == (0, "")
    one, other = trials(tmp_path / "alone"), trials(tmp_path / "vmapped")
    assert len({x.values["env_steps"] for x in one}) > 1
    for a, b in zip(one, other, strict=True):
        assert (a.state, a.point, a.values) == (b.state, b.point, b.values)
        assert a.curve == b.curve  # bit by bit, as in turn each is what it is alone


@pytest.mark.program
def test_vmapped_trials_end_when_the_workflow_is_full(tmp_path):
    more = ["space.env_steps=[600,1200]", "sampler=random", "trials=2", "vmapped=2", "sweep_dir=s"]
    assert swept(tmp_path, *EXACT, *more)[::2] == (0, "")  # its iterations take no env steps
    for one in trials(tmp_path / "s"):
        *_, last = (get_trial_folder(tmp_path / "s", one.number) / "metrics.jsonl").read_text().splitlines()
        assert (one.state, json.loads(last)["iteration"]) == (DONE, 3)


@pytest.mark.program
def test_vmapped_trials_fail_as_they_would_alone(tmp_path, monkeypatch):
    refused = "its payoffs are of no game"
    for name, space, reason, problem in (
        ("full", "space.iterations=[6,7]", None, "iterations=[67]: must be at most 3, when the policy pool is full"),
        ("refused", "space.iterations=[1,2]", refused, refused),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(PSRO, "failure_reason", lambda self, state, reason=reason: reason)
            options = {"trials": 2, "sampler": "random", "vmapped": 2, "sweep_dir": tmp_path / name}
            store, definition = sweep.create_sweep(options, [*EXACT, space])
            with closing(store), store.register_owner() as owner:
                queue = StoreQueue(store, definition, definition.build_sampler(), owner)
                worker.run_worker(queue, definition, 2, None, lambda: False)
                assert [one.state for one in store.read_trials()] == [FAILED] * 2
                for one in store.read_trials():
                    assert re.match(problem, one.message)


@pytest.mark.program
def test_vmapped_trials_are_the_same_to_rounding_and_refill_their_places(tmp_path):
    """Of a policy that hardly learns, so that rounding grows into nothing else."""
    slow = [*TINY[:-1], "space.learning_rate=${log_uniform:1e-9,1e-8}", "agent.workflow.agent.learning_rate=1e-9"]
    for name, beside in (("turn", "false"), ("vmapped", "true")):
        more = ["sampler=random", "trials=4", "vmapped=2", f"vectorized={beside}", f"sweep_dir={name}"]
        assert swept(tmp_path, *slow, *more)[::2] == (0, "")
    for a, b in zip(trials(tmp_path / "turn"), trials(tmp_path / "vmapped"), strict=True):
        assert a.point == b.point
        np.testing.assert_allclose(a.curve[-1], b.curve[-1], rtol=1e-4)


@pytest.mark.program
def test_agents_and_layers_are_chosen_and_each_shape_is_trained(tmp_path):
    given = [one for one in TINY if "hidden" not in one and one != "agent=ppo"]
    chosen = ["space.agent=[ppo,a2c]", "space.hidden=[[8],[4,4]]", "space.activation=[relu,tanh]"]
    shared = [*given, *chosen, "sampler=random", "trials=6"]
    assert swept(tmp_path, *shared, "vmapped=6", "sweep_dir=several")[::2] == (0, "")
    code, out, err = swept(tmp_path, *shared, "sweep_dir=alone")
    assert (code, err) == (0, "")
    several, alone = trials(tmp_path / "several"), trials(tmp_path / "alone")
    assert several == alone
    assert [one.state for one in alone] == [DONE] * 6
    assert {one.values["agent"] for one in alone} == {"ppo", "a2c"}
    for one in alone:
        saved = yaml.safe_load((get_trial_folder(tmp_path / "alone", one.number) / "config.yaml").read_text())
        assert saved["agent"]["name"] == one.values["agent"]
        agent = saved["agent"]["workflow"]["agent"]
        assert [agent["hidden"], agent["activation"]] == [
            one.values[f"agent.workflow.agent.{x}"] for x in AGENT_OPTIONS
        ]
    top = alone[int(re.search(r"\nbest: trial (\d+), return", out)[1])]
    assert f": agent {top.values['agent']}, env_steps" in out
    assert f"hidden {str(top.values['agent.workflow.agent.hidden']).replace(' ', '')}, activation" in out
    code, out, err = swept(tmp_path, "report", "alone", "experiment=tuned")
    assert (code, err) == (0, "")
    cfg = compose_in(tmp_path, "experiment=tuned")
    saved = yaml.safe_load((get_trial_folder(tmp_path / "alone", top.number) / "config.yaml").read_text())
    assert cfg["agent"] == saved["agent"]
