"""Configurations by the thousand: each is accepted, or refused with one line and exit code 2; nothing stays behind."""

import contextlib
import functools
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evorl import train
from evorl.training import config

AGENTS = ("td3", "ddpg", "cemrl", "erl", "ppo", "a2c", "impala", "dqn", "sac", "discrete_sac", "random")
ENVS = ("fast", "pendulum", "mountain_car_continuous", "cartpole", "delayed")
APART = ("resume", "init_from", "run_dir")
VALUES = """
0 1 2 7 10 -1 -7 0.0 0.5 1.0 1.5 -0.5 1e-9 1e9 1e30 -1e30 nan inf -inf 1_000 4294967296 99999999999999999999 true false
null abc '' [] [8] [8,8] [0] [a] {} {a:1} ??? ${seed} ${nothing} a.b ../x /
""".split()  # noqa: SIM905

TINY = {  # of the workflow, where it has them
    **{"num_envs": 2, "num_steps": 4, "num_updates": 2, "min_updates": 2, "max_updates": 4, "batch_size": 8},
    **{"capacity": 64, "random_steps": 16, "eval_episodes": 2},
}
LIKELY = {bool: ["true", "false"], int: ["1", "2", "8", "40"], float: ["0.0", "1e-4", "0.5", "0.97", "3"]}


@functools.cache
def known(agent, env):
    """Every option of a configuration by its dotted name, with its value."""
    return {name: value for name, value in config.paths(config.load([agent, env])) if name not in (*APART, "dry_run")}


@st.composite
def overrides(draw, agent, env):
    """One option with a likely value or any, as it is named or, now and then, a letter lost, doubled or changed."""
    name, value = draw(st.sampled_from(list(known(agent, env).items())))
    likely = [values for kind, values in LIKELY.items() if type(value) is kind]
    value = draw(st.sampled_from(likely[0] if likely and draw(st.integers(0, 9)) < 7 else VALUES))
    if draw(st.integers(0, 9)) == 0:
        i = draw(st.integers(0, len(name) - 1))
        name = name[:i] + draw(st.sampled_from(["", 2 * name[i], "x"])) + name[i + 1 :]
    sign = draw(st.sampled_from(["+", "++", "~"])) if draw(st.integers(0, 9)) == 0 else ""
    return f"{sign}{name}={value}"


@st.composite
def trainings(draw):
    """A tiny training that is likely to be accepted, and one to three likely changes of it."""
    agent, env = f"agent={draw(st.sampled_from(AGENTS))}", f"env={draw(st.sampled_from(ENVS))}"
    options = known(agent, env)
    tiny = [f"agent.workflow.{name}={value}" for name, value in TINY.items() if f"agent.workflow.{name}" in options]
    tiny += [f"{name}=5" for name in options if name.endswith("max_episode_steps")]
    tiny += [f"{name}=[8]" for name in options if name.endswith(".hidden")]
    changeable = [(name, kind) for name, value in options.items() for kind in LIKELY if type(value) is kind]
    changes = draw(st.lists(st.sampled_from(changeable), min_size=1, max_size=3, unique=True))
    given = [f"{name}={draw(st.sampled_from(LIKELY[kind]))}" for name, kind in changes]
    return [agent, env, *tiny, *given, "iterations=2", "evaluations=1", "minutes=null", "profile=false"]


@st.composite
def commands(draw):
    agent, env = f"agent={draw(st.sampled_from(AGENTS))}", f"env={draw(st.sampled_from(ENVS))}"
    given = draw(st.lists(overrides(agent, env), min_size=1, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        places = ["nowhere", "file", "file/run", "locked/run", "empty", ""]
        given.append(f"{draw(st.sampled_from(APART))}={draw(st.sampled_from(places))}")
    return [agent, env, *given]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where commands are given: it holds a file, an empty folder, and one that may not be read."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "file").write_text("not a run")
    (folder / "empty").mkdir()
    (folder / "locked").mkdir(mode=0)
    for agent in AGENTS:
        for env in ENVS:
            known(f"agent={agent}", f"env={env}")  # Hydra draws random numbers, which a strategy may not
    with contextlib.chdir(folder):
        yield folder
    (folder / "locked").chmod(0o700)


def answer(command):
    """Exit code, output and errors."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            train.main(command)
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def check(command, folder):
    before = sorted(folder.glob("**/*"))
    code, out, err = answer([*command, "dry_run=true"])
    assert sorted(folder.glob("**/*")) == before
    if code:
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    else:
        assert "memory:" in out or out.startswith(("hydra", "agent"))
    return code


relaxed = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=30, **relaxed)
@given(command=commands())
def test_a_configuration_is_accepted_or_refused_with_one_line(command, folder):
    check(command, folder)


@pytest.mark.slow
@settings(max_examples=2000, **relaxed)
@given(command=commands())
def test_two_thousand_of_them(command, folder):
    check(command, folder)


@pytest.mark.slow
@settings(max_examples=40, **relaxed)
@given(command=trainings())
def test_forty_of_them_train(command, folder):
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        code, _, err = answer([*command, f"run_dir={run}"])
        if code == 2:
            assert err.count("\n") == 1, err
            assert not run.exists()
        else:
            assert (code, err.count("Traceback")) in ((0, 0), (1, 0)), err  # 1: it diverged, as some of these do
            assert (run / "checkpoints" / "2").is_dir() or "diverged" in err
