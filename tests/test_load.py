"""What the panel says of the machine, of losses and of the parts of a program."""

import io
import stat
import time

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from evorl.machine import count_cores
from evorl.training import machine_load, profile
from evorl.training.profile import Profile
from evorl.training.records.display import Panel, format_losses

ROW = {
    "kind": "train", "iteration": 3, "env_steps": 64, "return": 1.0, "progress": 0.5, "seconds": 2.0,
    "host_seconds": 0.1, "compile_seconds": 1.0, "evaluation_seconds": 0.5,
    "actor_loss": -0.0123, "critic_loss": 4.5, "entropy": 1.25, "value": 9.0,
}  # fmt: skip


def test_a_process_that_computes_keeps_a_core_busy():
    asked = machine_load.MachineLoad()
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        sum(range(1000))
    busy, _, total = asked().partition(" of ")
    assert 0.1 < float(busy) <= count_cores() + 0.5
    assert total.startswith(f"{count_cores()} cores")


@pytest.mark.program
def test_gpus_are_told_of_as_nvidia_smi_has_them(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '93, 5210, 81559'\necho '[N/A], 1, 2'\n")
    smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    asked = machine_load.MachineLoad()
    end = time.perf_counter() + 10
    while "GPU" not in (told := asked()) and time.perf_counter() < end:
        time.sleep(0.02)
    asked.close()
    assert told.endswith("GPU 93 %, 5,210 of 81,559 MB")
    assert told.count("GPU") == 1


@pytest.mark.program
def test_an_nvidia_smi_that_fails_or_hangs_says_nothing(tmp_path, monkeypatch):
    for script in ("exit 3", "sleep 60"):
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(smi.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        asked = machine_load.MachineLoad()
        for _ in range(5):
            assert asked().endswith("cores")
            time.sleep(0.02)
        asked.close()


def test_losses_are_those_of_the_row():
    assert format_losses(ROW) == "actor_loss -0.0123   critic_loss 4.5   entropy 1.25"


def test_the_panel_shows_losses_cores_and_parts(tmp_path):
    shown, found = io.StringIO(), Profile(tmp_path)
    found.shares = {"environment": 0.4, "learning": 0.599, "replay": 0.001}
    console = Console(file=shown, force_terminal=True, width=110)
    panel = Panel("puffer on grid", every=0.0, console=console, profile=found)
    panel(ROW)
    panel.close()
    for fact in ("actor_loss -0.0123", f"of {count_cores()} cores", "environment 40%   learning 60%"):
        assert fact in shown.getvalue()
    assert "replay" not in shown.getvalue()


def test_a_trace_is_due_at_first_and_later_when_traces_have_paid(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now[0])
    traced = Profile(tmp_path)
    assert traced.is_due
    compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile()
    for took, later in ((0.1, 180.0), (5.0, 500.0)):
        with traced.trace(compiled):
            jax.block_until_ready(compiled(jnp.ones((8, 8))))
            now[0] += took
        now[0] += later - 1
        assert not traced.is_due
        now[0] += 2
        assert traced.is_due
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1
    assert sum(traced.shares.values()) in (0, 1)
