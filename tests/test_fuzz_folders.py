"""Changed folders of runs and sweeps: each is opened, or refused with OptionError on one line, and nothing is made."""

import contextlib
import copy
import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from evorl.cli import lineage
from evorl.errors import OptionError
from evorl.reports import curves, tables
from evorl.sweeps import experiment
from evorl.sweeps.definition import open_sweep
from evorl.training import runs
from evorl.training.configuration import config, config_file, targets
from tests.hostile import GAME, HOST, MAKE_SWEEP, TINY, TOUCH

CASES, MANY = 200, 2000
COLUMN = [None, 0, -1, 2**62, 1.5, float("inf"), "", "x", "[1]", "{}", '{"a": 1}', "\x1b", b"\xff", "running", "../x"]
VALUES = [
    None,
    True,
    0,
    1,
    -1,
    7,
    2**31,
    2**63,
    10**400,
    0.0,
    0.5,
    -1.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "abc",
    "???",
]
VALUES += [
    "${seed}",
    "${oc.env:HOME}",
    "../x",
    "/etc/passwd",
    "a:b",
    "\x1b[2J",
    "\x00",
    "é",
    "9" * 4000,
    "=1+1",
    "$x_$",
]
VALUES += [[], [[]], [1, "a", None], {}, {"a": 1}, {1: 2}, {"_target_": "x"}, {"_target_": 1}, TOUCH, GAME, HOST]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The configuration and the rows of a run, for which nothing was compiled, and a sweep."""
    folder = tmp_path_factory.mktemp("good")
    with contextlib.chdir(folder):
        words = [*TINY.split(), "iterations=1"]
        exec(MAKE_SWEEP.replace("sys.argv[1:]", repr(words)), {})
        cfg = config.compose_config(words)
        Path("run").mkdir()
        config_file.write_config(config.to_savable_data(cfg), Path("run"))
        rows = [
            {"kind": kind, "iteration": i, "seconds": 1.0 * i, "env_steps": 10 * i, "return": 0.5 * i}
            | {"seeds": {"return": [0.5 * i], "env_steps": [10 * i]}}
            | {"members": {"fitness": [[[1.0, i]]], "source": [[[0, 1]]]}}
            for i in (1, 2, 3)
            for kind in ("train", "evaluation")
        ]  # fmt: skip
        Path("run/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def places(node):
    """Yield every mapping or list within data, with the keys of what it holds."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from places(node[key])


def changed(draw, data):
    """Change data in one to three places: another value, a part, what stands elsewhere, or nothing."""
    for _ in range(draw.randint(1, 3)):
        every = list(places(data))
        if not every:
            return data
        node, key = draw.choice(every)
        how = draw.random()
        if how < 0.5:
            node[key] = copy.deepcopy(draw.choice(VALUES))
        elif how < 0.65:
            node[key] = {"_target_": draw.choice(sorted(set(targets.list_public_classes().values())))}
        elif how < 0.8:
            other, at = draw.choice(every)
            with contextlib.suppress(KeyError, IndexError):
                node[key] = copy.deepcopy(other[at])
        elif how < 0.9:
            del node[key]
        elif isinstance(node, dict):
            node[draw.choice(["x", "_target_", "é", "a/b", "name", "\x1b"])] = node.pop(key)
    return data


def torn(draw, content):
    """Change bytes: cut, flip, insert or repeat."""
    at = draw.randrange(len(content) + 1)
    how = draw.randrange(4)
    if how == 0:
        return content[:at]
    if how == 1:
        return content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
    if how == 2:
        return (
            content[:at]
            + draw.choice([b"\x00", b"\xff\xfe", b"\n", b'"', b"[" * 2000, b"&a ", b"!!x ", b"- "])
            + content[at:]
        )
    return content + content[at:]


def change_config(draw, folder):
    path = folder / "run" / "config.yaml"
    if draw.random() < 0.2:
        path.write_bytes(torn(draw, path.read_bytes()))
        return
    data = changed(draw, yaml.safe_load(path.read_text()))
    with contextlib.suppress(yaml.YAMLError, RecursionError, ValueError):
        path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8", errors="surrogateescape")


def change_rows(draw, folder):
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    i = draw.randrange(len(lines))
    row = changed(draw, json.loads(lines[i]))
    lines[i] = json.dumps(row) if draw.random() < 0.8 else lines[i][: draw.randrange(len(lines[i]))]
    path.write_text("\n".join(lines) + "\n")


def change_sweep(draw, folder):
    path = folder / "sweep" / "sweep.sqlite"
    if draw.random() < 0.2:
        path.write_bytes(torn(draw, path.read_bytes()))
        return
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        if draw.random() < 0.5:
            ((text,),) = file.execute("SELECT value FROM sweep WHERE name = 'definition'").fetchall()
            value = json.dumps(changed(draw, json.loads(text)))
            file.execute("UPDATE sweep SET value = ? WHERE name = 'definition'", (value,))
            return
        table = draw.choice(["sweep", "trials", "curves"])
        columns = [name for _, name, *_ in file.execute(f"PRAGMA table_info({table})")]
        value = draw.choice(COLUMN)
        with contextlib.suppress(sqlite3.IntegrityError):
            file.execute(f"UPDATE {table} SET {draw.choice(columns)} = ? WHERE rowid = 1", (value,))


def read_run(folder):
    data = config_file.read_config(folder / "run", "run")
    runs.assemble(data)


def read_curve(folder):
    damages = []
    tables.make_final_table({"task": [curves.read_curve(str(folder / "run"), damages)]}, 1.0)


def read_lineage(folder):
    lineage.read_history(folder / "run", None, 0)


def read_sweep(folder):
    store, found = open_sweep(folder / "sweep", (), "report")
    with contextlib.closing(store):
        trials, _ = store.read_intact_trials(found.space)
        for trial in trials[:1]:
            yaml.safe_load(experiment.format_trial_experiment(found, trial))
        store.has_active_owner()


KINDS = [
    (change_config, read_run),
    (change_config, read_lineage),
    (change_rows, read_curve),
    (change_rows, read_lineage),
]
KINDS += [(change_sweep, read_sweep)] * 2


def tried(good, case):
    """Change a folder and open it; returns whether it was refused."""
    draw = random.Random(case)
    change, read = draw.choice(KINDS)
    folder = Path("case")
    shutil.copytree(good, folder)
    change(draw, folder)
    before = sorted(path for path in folder.rglob("*") if not path.name.startswith("sweep.sqlite-"))
    try:
        read(folder)
        said = None
    except OptionError as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
    assert said is None or said.isprintable(), f"case {case}: {said}"
    assert before == sorted(path for path in folder.rglob("*") if not path.name.startswith("sweep.sqlite-")), case
    shutil.rmtree(folder)
    assert not Path("pwned").exists(), case
    return said is not None


def test_changed_folders(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = sum(tried(good, case) for case in range(CASES))
    assert CASES // 4 < refused < CASES


@pytest.mark.program
def test_many_changed_folders(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for case in range(CASES, MANY):
        tried(good, case)
