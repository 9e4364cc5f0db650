"""A sweep on Ray with three workers, some of which are killed: the same trials as on this machine alone."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from evorl.distributed.ray_executor import RayExecutor
from evorl.errors import OptionError
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import DONE
from tests.clusters import processes, require_ray
from tests.test_sweep_command import TINY, started

require_ray()
TRIALS = 7  # too few for a trial to be behind


def find_workers(root):
    """Return the worker processes and the Ray actors that have started them."""
    found = []
    for number in processes(root):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"evorl.sweeps.worker" in words or words.startswith(b"ray::ProcessActor"):
            found.append(number)
    return sorted(found)


@pytest.mark.program
def test_workers_that_are_killed_lose_no_trial_and_change_no_score(tmp_path):
    common = [*TINY, f"trials={TRIALS}", "sampler=random"]
    subprocess.run(
        [sys.executable, "-m", "evorl.sweep", *common, "sweep_dir=local"], cwd=tmp_path, check=True, capture_output=True
    )
    draw = random.Random(0)
    options = ["executor=ray", "workers=3", "cpus_per_worker=0.5", "sweep_dir=ray"]
    main, killed = started(tmp_path, *common, *options), 0
    try:
        end = time.monotonic() + 240
        while main.poll() is None and time.monotonic() < end:
            time.sleep(draw.uniform(1, 6))
            if killed < 3 and (workers := find_workers(main.pid)):
                os.kill(draw.choice(workers), signal.SIGKILL)
                killed += 1
        out, err = main.communicate(timeout=10)
    finally:
        main.kill()
        main.communicate()
    assert (main.returncode, err) == (0, "")
    assert killed == 3
    assert "it is replaced" in out
    found = {}
    for name in ("local", "ray"):
        with closing(SweepStore(tmp_path / name)) as store:
            trials = store.read_trials()
        assert [one.state for one in trials] == [DONE] * TRIALS
        found[name] = [(one.point, one.curve) for one in trials]
    assert found["local"] == found["ray"]


@pytest.mark.program
def test_resources_that_are_not_there_are_named(tmp_path):
    main = started(tmp_path, *TINY, "executor=ray", "workers=2", "gpus_per_worker=1", "cpus_per_worker=0.5")
    _, err = main.communicate(timeout=120)
    assert main.returncode == 2
    assert "workers=2: need 2 GPUs, and 0 are available; use gpus_per_worker=0" in err


def test_workers_that_share_a_gpu_share_its_memory():
    environment = RayExecutor(4, 1.0, None, 0.25).worker_environment
    assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.225"
    assert environment["PJRT_NPROC"] == "1"
    assert environment.get("JAX_PLATFORMS") == os.environ.get("JAX_PLATFORMS")
    assert RayExecutor(4, 2.0).worker_environment["JAX_PLATFORMS"] == "cpu"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in RayExecutor(1, 1.0, None, 2.0).worker_environment
    with pytest.raises(OptionError, match=r"gpus_per_worker=1.5: must be a fraction of a GPU or a whole number"):
        RayExecutor(1, 1.0, None, 1.5)
