"""Configurations by the thousand: each is accepted, or refused with one line and exit code 2; nothing stays behind."""

import contextlib
import functools
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evorl import train
from evorl.training import config

AGENTS, ENVS = ("td3", "ddpg", "cemrl"), ("fast", "pendulum", "mountain_car_continuous")
APART = ("resume", "init_from", "run_dir")
VALUES = """
0 1 2 7 10 -1 -7 0.0 0.5 1.0 1.5 -0.5 1e-9 1e9 1e30 -1e30 nan inf -inf 1_000 4294967296 99999999999999999999 true false
null abc '' [] [8] [8,8] [0] [a] {} {a:1} ??? ${seed} ${nothing} a.b ../x /
""".split()  # noqa: SIM905

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
