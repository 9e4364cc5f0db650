"""A sweep on Ray with three workers, some of which are killed: the same trials as on this machine alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from evorl.distributed.jobs import Job
from evorl.distributed.ray_executor import RayExecutor
from evorl.errors import OptionError
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import DONE
from tests.clusters import processes, require_ray
from tests.test_sweep_command import TINY, started

require_ray()
TRIALS = 7  # too few for a trial to be behind


def find_workers(root, module):
    """Return the processes of a module and the Ray actors that have started them."""
    found = []
    for number in processes(root):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if module in words or words.startswith(b"ray::ProcessActor"):
            found.append(number)
    return sorted(found)


def run_and_kill(main, module, kills, pause):
    """Kill random workers of a process after random pauses, in seconds; return what the process prints."""
    draw, killed = random.Random(0), 0
    try:
        end = time.monotonic() + 240
        while main.poll() is None and time.monotonic() < end:
            time.sleep(draw.uniform(*pause))
            if killed < kills and (workers := find_workers(main.pid, module)):
                os.kill(draw.choice(workers), signal.SIGKILL)
                killed += 1
        out, err = main.communicate(timeout=10)
    finally:
        main.kill()
        main.communicate()
    assert (main.returncode, err) == (0, "")
    assert killed == kills
    return out


@pytest.mark.program
def test_workers_that_are_killed_lose_no_trial_and_change_no_score(tmp_path):
    common = [*TINY, f"trials={TRIALS}", "sampler=random"]
    subprocess.run(
        [sys.executable, "-m", "evorl.sweep", *common, "sweep_dir=local"], cwd=tmp_path, check=True, capture_output=True
    )
    options = ["executor=ray", "workers=3", "cpus_per_worker=0.5", "sweep_dir=ray"]
    out = run_and_kill(started(tmp_path, *common, *options), b"evorl.sweeps.worker", 3, (1, 6))
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


def test_a_resumed_training_trusts_the_packages_of_its_configuration(tmp_path):
    job = Job(["agent=ppo", "run_dir=other"], tmp_path / "run", ["mine"])
    assert job.arguments == ["-m", "evorl.cli.guarded_training", "agent=ppo", f"run_dir='{tmp_path / 'run'}'"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").touch()
    assert job.arguments[2:] == [f"resume='{tmp_path / 'run'}'", "trust=[mine]"]


def test_workers_that_share_a_gpu_share_its_memory():
    environment = RayExecutor(4, 1.0, None, 0.25).worker_environment
    assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.225"
    assert environment["PJRT_NPROC"] == "1"
    assert environment.get("JAX_PLATFORMS") == os.environ.get("JAX_PLATFORMS")
    assert RayExecutor(4, 2.0).worker_environment["JAX_PLATFORMS"] == "cpu"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in RayExecutor(1, 1.0, None, 2.0).worker_environment
    with pytest.raises(OptionError, match=r"gpus_per_worker=1.5: must be a fraction of a GPU or a whole number"):
        RayExecutor(1, 1.0, None, 1.5)


@pytest.mark.program
def test_trainings_of_a_multirun_are_resumed_when_their_processes_are_killed(tmp_path):
    """Three seeds on an environment of the host: the rows of seeds that were trained alone."""
    words = ["agent=ppo", "env=gymnasium/CartPole-v1", "iterations=12", "agent.chunk=1", "evaluations=1"]
    words += ["agent.workflow.num_envs=2", "agent.workflow.num_steps=8", "agent.workflow.batch_size=16"]
    words += ["agent.workflow.num_epochs=1", "agent.workflow.eval_episodes=4", "agent.workflow.agent.hidden=[4]"]
    words += ["tensorboard=false", "checkpoint.minutes=0.001", "env.max_episode_steps=20"]
    command = [sys.executable, "-m", "evorl.distribute", "-m", *words, "seed=0,1,2", "workers=3", "cpus_per_worker=0.5"]
    main = subprocess.Popen(
        [*command, "run_dir=several"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out = run_and_kill(main, b"guarded_training", 2, (3, 6))
    assert "it is resumed" in out
    assert "several/seed-2" in out
    for seed in range(3):
        lines = (tmp_path / f"several/seed-{seed}/metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [row["iteration"] for row in found if row["kind"] == "train"] == list(range(1, 13))


@pytest.mark.program
def test_a_multirun_names_what_failed(tmp_path):
    command = [sys.executable, "-m", "evorl.distribute", "-m", "agent=ppo", "env=cartpole", "seed=0,1"]
    ended = subprocess.run([*command, "executor=serial"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "executor=serial: must be ray; python -m evorl.train -m" in ended.stderr
