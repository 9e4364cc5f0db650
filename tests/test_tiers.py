"""Tiers of tests follow from what tests do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards import shard_of

ROOT = Path(__file__).parents[1]
TESTS = """
import subprocess, sys
import jax, pytest
from tests.tiers import program_fixture
from tests.tiny import OFF_POLICY

def state():
    return OFF_POLICY.init(jax.random.key(0))

def test_shapes():
    jax.eval_shape(OFF_POLICY.step, jax.eval_shape(state), jax.random.key(0))
    assert jax.jit(lambda x: x + 1)(1) == 2

def test_step():
    jax.jit(OFF_POLICY.step).lower(jax.eval_shape(state), jax.random.key(0)).compile()

def test_scanned_step():
    steps = jax.jit(lambda state, keys: jax.lax.scan(OFF_POLICY.step, state, keys))
    steps.lower(jax.eval_shape(state), jax.random.split(jax.random.key(0))).compile()

def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_compiles_much(monkeypatch):
    monkeypatch.setattr("tests.tiers.COMPILE_SECONDS", 0.001)
    jax.jit(lambda x: x @ x + 3).lower(jax.ShapeDtypeStruct((7, 7), float)).compile()

@pytest.mark.program
def test_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)

@program_fixture
def started():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_taking(started):
    pass
"""


def test_each_file_is_in_one_shard_and_each_shard_has_files():
    files = list(Path(__file__).parent.glob("test_*.py"))
    assert {shard_of(file, 4) for file in files} == {1, 2, 3, 4}
    assert shard_of("tests/test_plr.py", 4) == shard_of("test_plr.py", 4)


@pytest.mark.program
def test_a_unit_test_that_does_more_fails_and_is_told_why(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.tiers", "-rfE", "--rootdir", tmp_path, tmp_path]
    found = subprocess.run([*command, "-c", "/dev/null"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "4 failed, 3 passed" in found, found
    for name, why in {
        "test_step": "compiles a workflow's step",
        "test_scanned_step": "compiles a workflow's step",
        "test_process": "starts a process",
        "test_compiles_much": "compiles 1 programs of",
    }.items():
        assert f"::{name} is a unit test, but {why}" in found
    chosen = subprocess.run([*command, "-c", "/dev/null", "-m", "program"], cwd=ROOT, capture_output=True, text=True)
    assert "2 passed, 5 deselected" in chosen.stdout
