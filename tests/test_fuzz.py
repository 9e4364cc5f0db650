"""Commands and run folders by the thousand: each is accepted, or refused with one line and code 2; nothing is left."""

import contextlib
import functools
import io
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evorl import load
from evorl.cli import play, train
from evorl.errors import OptionError
from evorl.training.configuration import config, discovery

pytestmark = pytest.mark.program

AGENTS = ("td3", "ddpg", "cemrl", "erl", "ppo", "a2c", "impala", "puffer", "dqn", "sac", "discrete_sac", "random")
ENVS = ("fast", "pendulum", "mountain_car_continuous", "cartpole", "delayed")
APART = ("resume", "init_from", "run_dir")
VALUES = """
0 1 2 7 10 -1 -7 0.0 0.5 1.0 1.5 -0.5 1e-9 1e9 1e30 -1e30 nan inf -inf 1_000 4294967296 99999999999999999999 true false
null abc '' [] [8] [8,8] [0] [a] {} {a:1} ??? ${seed} ${nothing} a.b ../x / ünï 東京 \u00a0 $ " [ {a: \\ =
""".split()  # noqa: SIM905
VALUES += ["", "9" * 5000, "[" * 200]

TINY = {  # of the workflow, where it has them
    **{"num_envs": 2, "num_steps": 4, "num_updates": 2, "min_updates": 2, "max_updates": 4, "batch_size": 8},
    **{"capacity": 64, "random_steps": 16, "eval_episodes": 2},
}
LIKELY = {bool: ["true", "false"], int: ["1", "2", "8", "40"], float: ["0.0", "1e-4", "0.5", "0.97", "3"]}


@functools.cache
def known(agent, env):
    """Every option of a configuration by its dotted name, with its value."""
    return {
        name: value
        for name, value in config.iterate_paths(config.compose_config([agent, env]))
        if name not in (*APART, "dry_run", "quiet", "json")  # the last two say where it prints
    }


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
    """Exit code, output and errors of the arguments of a training, or of a function."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command() if callable(command) else train.main(command)
        except SystemExit as ended:
            code = ended.code
    lines = err.getvalue().splitlines(keepends=True)
    return code, out.getvalue(), "".join(one for one in lines if ": replaces " not in one)  # which is no error


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


@pytest.fixture(scope="module")
def trained(folder):
    """A run of two iterations, to be copied and changed."""
    tiny = [
        f"agent.workflow.{name}={value}" for name, value in TINY.items() if name not in ("min_updates", "max_updates")
    ]
    tiny += ["env.max_episode_steps=5", "agent.workflow.agent.hidden=[8]", "iterations=2", "evaluations=1"]
    code, _, err = answer(["agent=td3", "env=fast", *tiny, "run_dir=trained"])
    assert code == 0, err
    return folder / "trained"


FILES = ("config.yaml", "metrics.jsonl", "train.csv", "progress/metadata", "state/_METADATA", "best/_METADATA")


@st.composite
def damages(draw):
    """A file of a run folder, and what becomes of its text."""
    how = draw(st.sampled_from(["cut", "flip", "insert", "lose", "empty", "value", "binary"]))
    return draw(st.sampled_from(FILES)), how, draw(st.floats(0, 0.999)), draw(st.sampled_from(VALUES))


@st.composite
def uses(draw):
    """How a run folder is used, with options likely and unlikely."""
    options = [
        *discovery.BUDGET_OPTIONS,
        "evaluations",
        "checkpoint.keep",
        "seed",
        "agent.name",
        "nothing",
        "env.name",
        "ünï",
    ]
    line = f"{draw(st.sampled_from(['', '', '+', '++', '~']))}{draw(st.sampled_from(options))}"
    line += draw(st.sampled_from(["", "=", f"={draw(st.sampled_from(VALUES))}"]))
    return draw(st.sampled_from(["resume", "load", "play"])), draw(st.lists(st.just(line), max_size=1))


def damaged(run, damage):
    name, how, part, value = damage
    path = next(path for path in run.rglob("*") if path.as_posix().endswith(name))
    data = path.read_bytes()
    i = int(part * len(data))
    if how == "lose":
        path.unlink()
        return
    token = value.encode()
    if how == "value":  # of the first name after i
        i = data.find(b": ", i) + 2 or i
        end = data.find(b"\n", i)
        changed = data[:i] + token + (data[end:] if end > 0 else b"")
    else:
        flipped = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        changed = {"cut": data[:i], "flip": flipped, "insert": data[:i] + token + data[i:], "empty": b""}.get(
            how, b"\xff\x00"
        )
    path.write_bytes(changed)


def check_use(run, damage, use):
    """What a command answers to a changed folder."""
    with tempfile.TemporaryDirectory() as parent:
        changed = Path(parent) / "run"
        shutil.copytree(run, changed)
        damaged(changed, damage)
        before = sorted(changed.rglob("*"))
        how, options = use
        commands = {
            "resume": lambda: train.main([f"resume={changed}", *options, "dry_run=true"]),
            "play": lambda: play.parse_play_options([str(changed), *options]) and load(changed, which="last"),
            "load": lambda: load(changed),
        }
        try:
            code, out, err = answer(commands[how])
        except OptionError as error:
            code, out, err = 2, "", f"error: {error}\n"
        assert sorted(changed.rglob("*")) == before
        if code:
            assert (code, out) == (2, ""), err
            assert err.splitlines()[-1].startswith("error: ")
            assert all(line.startswith(("error: ", "the checkpoint of iteration")) for line in err.splitlines()), err


relaxed = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=700, **relaxed)
@given(command=commands())
def test_a_configuration_is_accepted_or_refused_with_one_line(command, folder):
    check(command, folder)


@settings(max_examples=250, **relaxed)
@given(damage=damages(), use=uses())
def test_a_changed_folder_is_taken_or_refused_with_one_line(damage, use, trained):
    check_use(trained, damage, use)


@settings(max_examples=20, **relaxed)
@given(command=trainings())
def test_a_tiny_training_ends_or_is_refused_with_one_line(command, folder):
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        code, _, err = answer([*command, f"run_dir={run}"])
        if code == 2:
            assert err.count("\n") == 1, err
            assert not run.exists()
        else:
            assert (code, err.count("Traceback")) in ((0, 0), (1, 0)), err  # 1: it diverged, as some of these do
            saved = [int(one.name) for one in (run / "checkpoints").iterdir() if one.name.isdecimal()]
            budget = any(one.startswith("env_steps=") for one in command)  # which may end before iteration 2
            assert max(saved, default=0) in ((1, 2) if budget else (2,)) or "diverged" in err
