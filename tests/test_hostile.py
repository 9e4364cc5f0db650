"""Folders that someone else made, opened by every command: nothing is run, read or changed, and each says one line."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import evorl
from evorl.cli import autotune, curve, distribute, league, lineage, play, report, sweep, train
from evorl.errors import OptionError
from tests.hostile import CODE, MAKE_SWEEP, PAYLOADS, TINY
from tests.tiers import program_fixture

SECONDS = 5.0  # of CPU, until a command has refused
COMMANDS = {"train": train.main, "play": play.main, "curve": curve.main, "lineage": lineage.main, "league": league.main}
COMMANDS |= {
    "report": report.main,
    "sweep": sweep.main,
    "distribute": distribute.main,
    "load": lambda words: evorl.load(words[0]),
}
KEPT = {".lock", "sweep.sqlite-shm", "sweep.sqlite-wal", "lineage.png", "out.png"}  # what opening may leave


@program_fixture(scope="module")
def good(tmp_path_factory):
    """A folder with a run that was trained, and a sweep of three trials."""
    folder = tmp_path_factory.mktemp("good")
    with contextlib.chdir(folder):
        train.main([*TINY.split(), "run_dir=run", "iterations=1"])
        words = [*TINY.split(), "iterations=1"]
        exec(MAKE_SWEEP.replace("sys.argv[1:]", repr(words)), {})
    return folder


@pytest.fixture
def folder(good, tmp_path, monkeypatch):
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    for name in ("victim", "victim.lock", "secret", "folder/kept"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("swordfish")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "swordfish")
    return tmp_path


def snapshot(folder):
    """Return all that lies in a folder, with its bytes where they are few."""
    found = {}
    for path in folder.rglob("*"):
        if path.name not in KEPT and not path.name.startswith("events.out"):
            small = path.is_file() and not path.is_symlink() and path.stat().st_size < 10**6
            found[path] = path.read_bytes() if small else path.lstat().st_mode
    return found


def opened(command):
    """Run a command and return its exit code."""
    name, *words = shlex.split(command)
    try:
        COMMANDS[name](words)
    except OptionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as ended:
        return ended.code
    return 0


@contextlib.contextmanager
def alarm(seconds):
    """Raise where something hangs."""

    def ring(*_):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.name)
def test_nothing_of_it_is_run_read_or_changed(payload, folder, capfd):
    payload.prepare(folder)
    before = snapshot(folder)
    first, *then = payload.command.split(" && ")
    capfd.readouterr()
    began = time.process_time()
    with alarm(60):
        code = opened(first)
        if not code and then:  # what it wrote is harmless
            assert not re.search(r"pwned|swordfish|wandb: true", Path("configs/experiment/found.yaml").read_text())
            code = opened(then[0])
            shutil.rmtree("configs")
    assert time.process_time() - began < SECONDS
    out, err = capfd.readouterr()
    after = snapshot(folder)
    assert out or not payload.shown
    if payload.draws:
        after = {path: found for path, found in after.items() if path in before or path.parent.name != "sweep"}
    assert after == before
    assert "swordfish" not in out + err
    assert code == 2, out + err
    lines = [line for line in err.splitlines() if not line.startswith("the checkpoint of iteration 1 is damaged")]
    assert (len(lines), lines[0].startswith("error: "), lines[0].isprintable()) == (1, True, True), err


def test_what_weights_and_biases_has_left_is_no_hindrance(folder):
    (folder / "run" / "wandb" / "run-1").mkdir(parents=True)
    (folder / "run" / "wandb" / "latest-run").symlink_to("/nowhere")
    os.mkfifo(folder / "run" / "wandb" / "pipe")
    assert opened("load run") == 0


def test_good_folders_are_opened(folder, capfd):
    for command in ("load run", "curve out.png run", "sweep report sweep experiment=found"):
        assert opened(command) == 0, capfd.readouterr().err
    assert Path("configs/experiment/found.yaml").is_file()
    assert opened("train experiment=found dry_run=true") == 0


@pytest.mark.parametrize(
    "found", [None, "rm", [], {"devices": "$(touch pwned)"}, {"; touch pwned #": 1}, {"chunk": 1.5}]
)
def test_a_remembered_choice_is_one(found):
    assert not autotune.is_candidate(found)
    assert autotune.is_candidate({"devices": 1, "chunk": 4})


def test_there_are_enough_payloads():
    assert len(PAYLOADS) >= 60
    assert len(CODE) >= 15
