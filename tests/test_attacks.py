"""A run directory is only data: hostile ones, at every place where one is read, run, read or overwrite nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref

import pytest
import yaml

import evorl
from evorl import package
from evorl.cli import play, train
from evorl.errors import OptionError
from evorl.training import devices, runs
from evorl.training.configuration import config_file
from evorl.training.records import files
from tests.test_train import TINY
from tests.tiers import program_fixture

TD3 = ["agent=td3", *TINY]


@program_fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    train.main([*TD3, f"run_dir={run}", "iterations=1"])
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy, in the folder that commands are given in, beside a file that is not to be read or written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "victim").write_text("swordfish")
    (tmp_path / "folder").mkdir()
    return shutil.copytree(trained, tmp_path / "run")


USES = {
    "resume": lambda run: train.main([f"resume={run}", "iterations=2"]),
    "init_from": lambda run: train.main([*TD3, f"init_from={run}", "run_dir=child", "iterations=1"]),
    "play": lambda run: play.main([str(run), "episodes=1"]),
    "load": lambda run: evorl.load(run),
    "read": lambda run: runs.assemble(config_file.read_config(run, "run")),  # which all of them begin with
}


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def refused(run, use, capfd):
    """The one line with which it is refused; nothing of the folder around the run may have changed."""
    before = snapshot(run.parent)
    capfd.readouterr()
    try:
        USES[use](run)
    except OptionError as error:
        said = f"error: {error}\n"
    except SystemExit as ended:
        code, said = ended.code, capfd.readouterr().err
        assert code == 2, said
    else:
        pytest.fail(f"{use} took it")
    after = snapshot(run.parent)
    assert after == {run / ".lock": b""} | before or after == before  # only the lock may have been made
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "swordfish" not in said
    return said


@pytest.mark.parametrize("option", ["iterations", "seed", "env.name", "nothing"])
def test_an_interpolation_of_nothing_on_resume_is_one_line(run, option, capfd):
    with pytest.raises(SystemExit) as ended:
        train.main([f"resume={run}", option + "=${nothing}"])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("group", ["env", "agent"])
def test_a_configuration_without_a_group_is_refused_in_one_line(group, capfd):
    with pytest.raises(SystemExit) as ended:
        train.main(["agent=ppo", "env=cartpole", f"~{group}", "dry_run=true"])
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith(f"error: {group}")


def test_a_resume_that_is_refused_leaves_the_budget_as_it_was(run, capfd):
    step = max((run / "checkpoints").iterdir(), key=lambda path: path.name)
    for path in [path for path in step.rglob("*") if path.is_file()]:
        path.write_bytes(b"")
    before = (run / config_file.FILE_NAME).read_bytes()
    with pytest.raises(SystemExit):
        train.main([f"resume={run}", "iterations=7"])
    assert "all checkpoints are damaged" in capfd.readouterr().err
    assert (run / config_file.FILE_NAME).read_bytes() == before


TOUCH = "{_target_: os.system, command: touch pwned}"
CODE = {
    "a command": TOUCH,
    "created": "${oc.create:" + TOUCH + "}",
    "decoded": '${oc.decode:"' + TOUCH + '"}',
    "in a prior": "${uniform:0,${oc.create:" + TOUCH + "}}",
    "fixed": "${fixed:${oc.create:" + TOUCH + "}}",
    "of the environment": "${oc.env:SECRET}",
    "tagged": '!!python/object/apply:os.system ["touch pwned"]',
    "what evorl imports": "{_target_: evorl.training.runs.Path, args: pwned}",
    "what makes folders": "{_target_: evorl.training.records.checkpoint.Checkpoints, folder: pwned}",
    "what writes": "{_target_: evorl.training.records.recorders.JsonLines, run_dir: pwned}",
    "a method": "{_target_: evorl.training.runs.Path.home}",
    "a function": "{_target_: evorl.training.records.files.write_atomically, path: pwned, text: pwned}",
    "a pickle's reader": "{_target_: evosax.algorithms.LearnedES, params_path: pwned}",
    "a class": "{_target_: hydra.utils.get_class, path: subprocess.Popen}",
    "evosax's class": "{_target_: hydra.utils.get_class, path: evosax.algorithms.SNES}",
    "no name": "{_target_: [os, system]}",
    "binary": "!!binary dG91Y2ggcHduZWQ=",
    "an alias": "[&a [x], *a]",
    "endless": "[" * 3000 + "]" * 3000,
}
PLACES = ("env", "agent.workflow", "agent.workflow.agent", "agent.workflow.agent.discount", "agent.workflow.env")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", CODE)
def test_nothing_that_a_configuration_says_is_run(what, place, run, monkeypatch, capfd):
    monkeypatch.setenv("SECRET", "swordfish")
    data = config_file.set_values(yaml.safe_load((run / config_file.FILE_NAME).read_text()), {}, ())
    *outer, last = place.split(".")
    node = data
    for name in outer:
        node = node[name]
    node[last] = "HERE"
    (run / config_file.FILE_NAME).write_text(yaml.safe_dump(data).replace(": HERE\n", f": {CODE[what]}\n"))
    refused(run, "read", capfd)
    if (what, place) in (("created", "env"), ("what makes folders", "agent.workflow")):
        for use in USES:
            refused(run, use, capfd)


@pytest.mark.program
@pytest.mark.parametrize(("given", "told"), [
    ({}, "has schema 0, must be 4; open it with the version of evorl that wrote it"),
    ({"schema": 5, "versions": {"evorl": "0.9.1"}}, "has schema 5, must be 4; open it with evorl 0.9.1"),
    ({"schema": "1", "versions": {"evorl": "\x1b[31m"}}, "a schema that is not a number, must be 4; open it with the "),
    ({"schema": 0, "versions": ["0.9"]}, "has schema 0, must be 4; open it with the version of evorl that wrote it"),
])  # fmt: skip
def test_a_run_of_another_schema_is_refused_with_what_opens_it(run, given, told):
    data = yaml.safe_load((run / config_file.FILE_NAME).read_text())
    assert data.pop("schema") == config_file.SCHEMA == 4
    assert data.pop("versions") == {**package.versions(), "devices": devices.describe_devices()}
    (run / config_file.FILE_NAME).write_text(yaml.safe_dump(data | given))
    with pytest.raises(OptionError, match=told):
        evorl.load(run)


@pytest.mark.program
def test_a_prior_that_nothing_searches_is_refused(run):
    data = yaml.safe_load((run / config_file.FILE_NAME).read_text())
    data["agent"]["workflow"]["agent"]["discount"] = {"_target_": "evorl.priors.Uniform", "low": 0, "high": 1}
    (run / config_file.FILE_NAME).write_text(yaml.safe_dump(data))
    with pytest.raises(OptionError, match="a prior needs a meta-workflow that searches"):
        evorl.load(run)


@pytest.mark.parametrize("text", ["", "a: [", "\x00", "- 1", "agent: 1", "agent: {a: 1", "seed: 2001-99-99", "\ud800"])
def test_a_configuration_that_is_none_is_one_line(text, run, capfd):
    (run / config_file.FILE_NAME).write_bytes(text.encode("utf-8", "surrogatepass"))
    for use in USES if text == "a: [" else ("read",):
        refused(run, use, capfd)


def test_half_a_configuration_is_one_line(run, capfd):
    whole = (run / config_file.FILE_NAME).read_text().splitlines(keepends=True)
    for count in range(0, whole.index("num_seeds: 1\n"), 7):
        (run / config_file.FILE_NAME).write_text("".join(whole[:count]))
        refused(run, "read", capfd)


LINKS = [
    "metrics.jsonl",
    "train.csv",
    "evaluation.csv",
    "config.yaml",
    ".lock",
    ".lock.holder",
    "config.new",
    "metrics.new",
]
FOLDERS = ["checkpoints", "play", "tensorboard", "profile", "wandb", "checkpoints/2", "checkpoints/1/replay"]


@pytest.mark.parametrize("name", [*LINKS, *FOLDERS, "checkpoints/1/state/d/link"])
@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_no_link_is_followed(kind, name, run, capfd):
    path, is_folder = run / name, name in FOLDERS
    if kind != "symbolic" and is_folder:
        pytest.skip("folders have no hard links")
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        victim = run.parent / ("folder" if is_folder else "victim")
        path.symlink_to(victim) if kind == "symbolic" else path.hardlink_to(victim)
    for use in USES if (kind, name) in (("symbolic", "metrics.jsonl"), ("symbolic", "checkpoints")) else ("read",):
        refused(run, use, capfd)


def test_what_is_appended_to_or_replaced_while_training_is_no_link(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("swordfish")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="link"), files.open_for_appending(link) as file:
        file.write("more")
    with pytest.raises(OSError, match="link"):
        files.read_text(link)
    files.write_atomically(link, "new")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("swordfish", "new", False)


def test_links_within_the_folder_of_weights_and_biases_are_its_own(run):
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    config_file.read_config(run, "run")


def test_a_progress_that_no_training_keeps_is_one_line(run, capfd):
    written = next((run / "checkpoints" / "1" / "progress").glob("metadata"))
    for change in (
        {"iteration": "x"},
        {"row_counts": []},
        {"unknown": 1},
        {"best_returns": [[1], [1, 2]]},
        {"totals": {"env_steps": 3}},
    ):
        progress = json.loads(written.read_text()) | change
        progress.pop("digest")
        progress["digest"] = runs_digest(progress)
        written.write_text(json.dumps(progress))
        refused(run, "load", capfd)
        with pytest.raises(SystemExit) as ended:
            USES["resume"](run)
        assert (ended.value.code, capfd.readouterr().err.count("\n")) == (2, 1)


def runs_digest(progress):
    import zlib

    return zlib.crc32(json.dumps(progress, sort_keys=True).encode())


# ones's own classes


def test_a_class_of_ones_own_is_trusted_where_its_user_names_it(run, capfd, monkeypatch):
    monkeypatch.syspath_prepend(run.parent)
    (run.parent / "windy.py").write_text(
        "from evorl.envs.suites.brax import Brax\n\ndef make(**options):\n    return Brax(name='fast', **options)\n"
    )
    data = yaml.safe_load((run / config_file.FILE_NAME).read_text())
    data["env"] = {"_target_": "windy.make", "max_episode_steps": 20}
    (run / config_file.FILE_NAME).write_text(yaml.safe_dump(data))
    (run.parent / "configs" / "env").mkdir(parents=True)
    (run.parent / "configs" / "env" / "windy.yaml").write_text("_target_: windy.make\n")  # which counts no more
    for use in USES:
        assert "names windy.make, which is not part of evorl; use trust=[windy]" in refused(run, use, capfd)
    assert evorl.load(run, trust=["windy"]).env.max_episode_steps == 20
    play.main([str(run), "episodes=1", "trust=[windy]", "out=null"])
    train.main([f"resume={run}", "iterations=2", "trust=[windy]"])
    train.main([*TD3, f"init_from={run}", "run_dir=child", "iterations=1", "trust=[windy]"])
    assert yaml.safe_load((run / config_file.FILE_NAME).read_text())["trust"] == []


@pytest.mark.program
def test_what_an_environment_variable_gave_is_asked_for_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "20")
    (tmp_path / "configs" / "env").mkdir(parents=True)
    (tmp_path / "configs" / "env" / "mine.yaml").write_text(
        "_target_: evorl.envs.suites.brax.Brax\nname: fast\nmax_episode_steps: ${oc.decode:${oc.env:STEPS}}\n"
    )
    options = [one for one in TD3 if "env" not in one.partition("=")[0]]
    train.main([*options, "env=mine", "run_dir=run", "iterations=1"])
    assert yaml.safe_load((tmp_path / "run" / config_file.FILE_NAME).read_text())["env"]["max_episode_steps"] == "???"
    with pytest.raises(OptionError, match=r"env\.max_episode_steps: must be given"):
        evorl.load("run")
    steps = {"env.max_episode_steps": 20}
    assert evorl.load("run", given=steps).env.max_episode_steps == 20
    play.main(["run", "episodes=1", "out=null", "env.max_episode_steps=20"])
    train.main(["resume=run", "iterations=2", "env.max_episode_steps=20"])
    assert yaml.safe_load((tmp_path / "run" / config_file.FILE_NAME).read_text())["env"]["max_episode_steps"] == "???"
    with pytest.raises(OptionError, match="only missing values can be given"):
        evorl.load("run", given=steps | {"env.name": "ant"})
    train.main([*options, "env=mine", "run_dir=child", "init_from=run", "iterations=1"])


HOLD = "from pathlib import Path; import sys, time; from evorl.training.records import files\n"
HOLD += (
    "with files.lock_run_dir(Path(sys.argv[1]), 'resume'):\n    {}\n    print('held', flush=True)\n    time.sleep(60)\n"
)


FORK = "import os; os.fork() and time.sleep(60)"  # the child goes on when the lock is not its any more


@pytest.mark.parametrize("also", ["pass", FORK])
def test_two_trainings_never_write_to_one_folder(also, run, capfd):
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(also), str(run)], stdout=subprocess.PIPE)
    process.stdout.readline()
    try:
        if also == "pass":
            said = refused(run, "resume", capfd)
            assert said == f"error: resume={run}: process {process.pid} is writing to it\n"
            evorl.load(run)  # which needs no lock
    finally:
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
    with files.lock_run_dir(run, "resume"):  # the system has released it, and no child holds it
        assert (run / files.HOLDER).read_text() == f"{os.getpid()}\n"
    assert not (run / files.HOLDER).exists()


@pytest.mark.program
@pytest.mark.parametrize("begun", [False, True])
def test_signals_end_a_training_sooner_and_sooner(begun):
    with train.StopHandler() as stopping:
        if begun:
            assert not stopping()
            signal.raise_signal(signal.SIGTERM)
            assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stopping.has_started == begun
    script = (
        "import signal; from evorl.training.stopping import StopHandler\n"
        f"s = StopHandler().__enter__(); s.has_started = {begun}\n"
    )
    script += "for _ in range(3):\n    try: signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt: pass\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 128 + signal.SIGINT


def test_an_interrupt_is_not_lost_where_python_ignores_exceptions(capfd):
    def interrupted():
        with train.StopHandler() as stopping:
            stopping()
            signal.raise_signal(signal.SIGINT)
            thing = {1}
            _gone = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capfd.readouterr().err == "stopping after this chunk; interrupt again to stop without saving\n"


@pytest.mark.program
def test_signals_are_heard_while_the_main_thread_waits():
    script = """
import ctypes, os, signal, threading, time
from evorl.training.stopping import StopHandler
def twice():
    for _ in range(2):
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGINT)
with StopHandler() as stopping:
    stopping()
    threading.Thread(target=twice).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so that what it waits in is not left
    ctypes.CDLL(None).sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True, timeout=50)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "stopping after this chunk; interrupt again to stop without saving\nstopped without saving\n"


@pytest.mark.program
def test_an_interrupted_process_does_not_wait_for_the_device():
    """Which it would leave with SIGSEGV."""
    script = """
import jax
import jax.numpy as jnp
from evorl.command import command
for_ever = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0, 0] >= 0, lambda x: jnp.tanh(x @ x), x))
x = jnp.ones((300, 300))
compiled = for_ever.lower(x).compile()
with command(None):
    compiled(x)
    raise KeyboardInterrupt("left")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "left\n")


def test_an_interrupt_removes_only_a_folder_in_which_nothing_was_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def interrupted(data, run_dir, built, numbers, stopping, out):
        seen.append(run_dir)
        if len(seen) > 1:
            stopping()
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "_train", interrupted)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            train.main([*TD3, "iterations=1"])
        assert ended.value.code == 130
    assert [run.is_dir() for run in seen] == [False, True]
    with pytest.raises(SystemExit):
        train.main([f"resume={seen[1]}"])
    assert seen[2] == seen[1]
    assert (seen[1] / config_file.FILE_NAME).is_file()
