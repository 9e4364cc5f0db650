"""Several processes train what one does, go on in any number, and end together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from evorl.agents import PPO
from evorl.ec import OpenES
from evorl.errors import OptionError
from evorl.training import device_mesh, processes
from tests.contract_cases import META
from tests.tiny import evolution, on_policy

ROOT = Path(__file__).parents[1]
TIMES = ("seconds", "duration", "idle", "progress")


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(count, folder, iterations, *names):
    """Start processes with two devices in all."""
    port = free_port()
    options = [f"localhost:{port},{count},{i}" for i in range(count)] if count > 1 else ["off"]
    command = [sys.executable, "-m", "tests.several_processes"]
    given = [str(2 // count), str(folder), str(iterations), *names]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen([*command, option, *given], cwd=ROOT, **pipes) for option in options]


def rows_of(started):
    """Return the rows of each case, without times, once all processes have ended."""
    said = [process.communicate() for process in started]
    assert all(process.returncode == 0 for process in started), [text[-1500:] for _, text in said]
    cases = [json.loads(line) for line in said[0][0].splitlines() if line.startswith("[{")]
    return [[{k: v for k, v in row.items() if not any(t in k for t in TIMES)} for row in rows] for rows in cases]


@pytest.mark.program
def test_two_processes_train_what_one_does_and_go_on_in_one_and_in_two(tmp_path):
    """Bitwise, since the mesh of devices is the same."""
    names = "pbt", "openes"
    whole = rows_of(start(1, tmp_path / "whole", 6, *names))
    parts = [rows_of(start(count, tmp_path / "parts", end, *names)) for count, end in ((2, 2), (1, 4), (2, 6))]
    for of_whole, *of_parts in zip(whole, *parts, strict=True):
        trained = [row for rows in of_parts for row in rows if row["kind"] == "train"]
        assert trained == [row for row in of_whole if row["kind"] == "train"]
        assert of_parts[-1][-1] == of_whole[-1]  # the last evaluation, and that of the best policies


@pytest.mark.program
def test_processes_end_together_and_the_message_names_the_one_that_died(tmp_path):
    first, second = start(2, tmp_path, 10**9, "openes")
    while not any((tmp_path / "openes").glob("[0-9]*")):
        assert first.poll() is None
        time.sleep(0.1)
    os.kill(second.pid, signal.SIGKILL)
    killed = time.monotonic()
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1
    assert time.monotonic() - killed < 60
    assert f"error: process 1 on {os.uname().nodename} has died\n" in said
    second.communicate()


def pretend_processes(monkeypatch, count, devices):
    monkeypatch.setattr(processes, "count", lambda: count)
    monkeypatch.setattr(jax, "devices", lambda: [None] * devices)


LEARNER, SEARCH = on_policy(PPO(), batch_size=16), evolution(OpenES(16), "none")


@pytest.mark.parametrize(
    ("workflow", "seeds", "count", "devices", "shape"),
    [
        (META["pbt_ppo"], 1, 2, 8, (1, 4, 1)),
        (META["pbt_ppo"], 4, 2, 8, (4, 2, 1)),
        (LEARNER, 8, 4, 8, (8, 1, 1)),
        (LEARNER, 4, 4, 8, (4, 1, 1)),
        (SEARCH, 1, 4, 8, (1, 1, 8)),  # individuals may be in different processes
        (SEARCH, 2, 4, 8, (1, 1, 8)),
    ],
)
def test_each_process_gets_equally_many_devices(workflow, seeds, count, devices, shape, monkeypatch):
    pretend_processes(monkeypatch, count, devices)
    assert device_mesh.choose_mesh_shape(workflow, seeds) == shape


def test_processes_that_cannot_share_are_refused(monkeypatch):
    pretend_processes(monkeypatch, 2, 8)
    use = "use a multiple of 2, such as num_seeds=2"
    for seeds, what in ((1, "1 run"), (3, "3 seeds")):
        with pytest.raises(OptionError, match=f"2 processes cannot share {what}; {use}"):
            device_mesh.choose_mesh_shape(LEARNER, seeds)
    with pytest.raises(OptionError, match="devices=4: does not divide 4 environments over 2 processes"):
        device_mesh.choose_mesh_shape(LEARNER, 1, 4)  # its 4 environments are in one process


@pytest.mark.parametrize(
    ("given", "several"),
    [
        ({}, False),
        ({"SLURM_STEP_NODELIST": "node[0-3]", "SLURM_NTASKS": "4"}, True),
        ({"SLURM_STEP_NODELIST": "node0", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "4"}, False),  # a batch script, outside of srun
        ({"OMPI_MCA_orte_hnp_uri": "x", "OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "x", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"KUBERNETES_SERVICE_HOST": "x"}, False),
    ],
)
def test_several_processes_are_found_by_their_launcher(given, several, monkeypatch):
    for name in (*processes.COUNT_VARIABLES, *processes.COUNT_VARIABLES.values(), *processes.KUBERNETES_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert processes.needs_several("auto") == several
    assert not processes.needs_several("off")
    assert processes.needs_several("localhost:1,2,0")


@pytest.mark.parametrize("option", ["two", "node0,2,0", "node0:1,2,2", "node0:1,2", "node0:1,x,0", "3", "node0:1,0,0"])
def test_a_wrong_option_is_refused(option):
    with pytest.raises(OptionError, match=r"distributed=.*: must be auto, off, or ADDRESS:PORT,COUNT,ID"):
        processes.connect(option)


def test_one_process_agrees_with_itself():
    value = object()
    assert processes.agreed(value) is value
    assert processes.on_first(lambda: value) is value
    assert processes.gathered(value) is value
    assert processes.any_process(True) is True
    processes.require_same_options({"seed": 0})
    with processes.session("off"):
        assert processes.is_first()
