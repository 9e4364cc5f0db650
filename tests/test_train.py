"""The command line, as a user calls it."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from evorl.training.configuration import multirun
from tests.tiers import program_fixture

TINY = [
    "env=fast",
    "env.max_episode_steps=20",
    "evaluations=1",
    "agent.workflow.random_steps=40",
    "agent.workflow.capacity=2000",
    "agent.workflow.batch_size=16",
    "agent.workflow.eval_episodes=4",
    "agent.workflow.agent.hidden=[8,8]",
]
TINY_CEMRL = ["agent=cemrl", "agent.workflow.min_updates=2", "agent.workflow.max_updates=2", *TINY]


def train(folder, *arguments):
    command = [sys.executable, "-m", "evorl.train", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@program_fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder, "run_dir=first", "iterations=3", "num_seeds=2", *TINY_CEMRL)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.program
def test_it_trains_into_a_run_directory(run):
    folder, result = run
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "100%" in result.stdout
    assert "resume=first" in result.stdout
    written = rows(folder / "first")
    assert [row["iteration"] for row in written if row["kind"] == "train"] == [1, 2, 3]
    assert len(written[-1]["seeds"]["return"]) == 2
    assert (folder / "first" / "config.yaml").exists()
    assert not (folder / "outputs").exists()


@pytest.mark.program
def test_standard_output_is_json_or_nothing(tmp_path):
    given = ["agent=td3", "iterations=2", *TINY]
    result = train(tmp_path, "json=true", "run_dir=told", *given)
    said = [json.loads(line) for line in result.stdout.splitlines()]
    assert said[:-1] == rows(tmp_path / "told")
    assert {"kind": "result", "run_dir": "told", "stopped": False, "iteration": 2}.items() <= said[-1].items()
    assert said[-1]["last"]["return"] == said[-2]["return"]
    assert "watch it: python -m evorl.play told" in result.stderr
    result = train(tmp_path, "quiet=true", "run_dir=quiet", *given)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "quiet" / "checkpoints").is_dir()


def test_a_run_directory_is_never_overwritten(run):
    folder, _ = run
    result = train(folder, "run_dir=first", "iterations=1", *TINY_CEMRL)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: run_dir=first: exists already; use resume=first to continue it\n"


@pytest.mark.program
def test_resume_goes_on_and_keeps_its_configuration(run):
    folder, _ = run
    result = train(folder, "resume=first", "iterations=5")
    assert result.returncode == 0, result.stderr
    written = rows(folder / "first")
    assert [row["iteration"] for row in written if row["kind"] == "train"] == [1, 2, 3, 4, 5]
    for wrong, message in {
        "agent=td3": "agent=td3: a resumed run keeps its configuration",
        "seed=5": "seed=5: a resumed run keeps its configuration",
    }.items():
        result = train(folder, "resume=first", wrong)
        assert (result.returncode, result.stderr.splitlines()[0][: len(message) + 7]) == (2, f"error: {message}")
    result = train(folder, "resume=nowhere")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "resume=nowhere: is not a run directory" in result.stderr


@pytest.mark.smoke
def test_a_run_that_is_killed_goes_on_from_its_last_checkpoint(tmp_path):
    arguments = ["agent=search", "problem=zdt1", "tensorboard=false", "run_dir=run", "checkpoint.minutes=0.001"]
    endless = [sys.executable, "-m", "evorl.train", *arguments, "iterations=100_000_000"]
    with subprocess.Popen(endless, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))) < 2:
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    goal = int(rows(tmp_path / "run")[-1]["iteration"]) + 1_000
    result = train(tmp_path, "resume=run", f"iterations={goal}")
    assert result.returncode == 0, result.stderr
    written = [row["iteration"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert written == sorted(set(written))
    assert written[-1] == goal


@pytest.mark.program
def test_a_multirun_trains_each_into_a_folder_of_its_name_and_ends_with_a_table(tmp_path):
    result = train(tmp_path, "-m", "seed=1,2", "agent=td3", "agent.workflow.agent.tau=0.1,2", "iterations=1", *TINY)
    lines = result.stderr.splitlines()
    assert result.returncode == 2
    assert lines == ["error: agent.workflow.agent.tau=2: must be between 0 and 1"] * 2
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["seed-1+tau-0.1", "seed-2+tau-0.1"]
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines()[-6:]]
    assert table[0] == ["run", "seed", "agent.workflow.agent.tau", "best return", "last return", "minutes", ""]
    last = rows(folder / "seed-1+tau-0.1")[-1]
    assert table[2][:5] == [f"runs/{folder.name}/seed-1+tau-0.1", "1", "0.1", *[f"{last['return']:.1f}"] * 2]
    assert [line[-1] for line in table[2:]] == ["", "refused", "", "refused"]


@pytest.mark.program
def test_runs_of_a_multirun_with_other_devices_have_a_process_each(tmp_path):
    result = train(tmp_path, "-m", "agent=td3", "devices=1,2", "num_seeds=2", "iterations=1", "run_dir=many", *TINY)
    assert result.returncode == 0, result.stderr
    returns = [rows(tmp_path / "many" / name)[-1]["seeds"]["return"] for name in ("devices-1", "devices-2")]
    np.testing.assert_allclose(*returns, rtol=1e-3)
    assert result.stdout.splitlines()[-1].startswith("| many/devices-2 ")


@pytest.mark.program
def test_a_mistake_in_any_run_of_a_multirun_is_found_before_the_first(tmp_path):
    result = train(tmp_path, "-m", "agent=td3,tt3", "iterations=1")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: unknown agent tt3; did you mean td3? all ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        ([["agent=td3", "minutes=1"], ["agent=discrete_sac", "minutes=1"]], ["agent-td3", "agent-discrete_sac"]),
        ([["agent.x.lr=1e-3", "seed=1"], ["agent.x.lr=2e-3", "seed=2"]], ["lr-1e-3+seed-1", "lr-2e-3+seed-2"]),
        ([["name='a/b \u00e9'"], ["name=../.."]], ["name-_a_b", "name"]),
        ([["seed=1"], ["seed=1"]], ["0+seed-1", "1+seed-1"]),
        ([["name=a"], ["name=A"]], ["0+name-a", "1+name-A"]),  # one folder where case does not count
        ([["x=" + "9" * 300], ["x=" + "9" * 301]], ["0+x-" + "9" * 98, "1+x-" + "9" * 98]),
        ([["seed=1"]], ["seed-1"]),
        ([[]], ["run"]),
    ],
)
def test_folders_of_a_multirun_have_short_and_different_names(jobs, names):
    assert multirun.name_folders(jobs) == names


@pytest.mark.program
def test_the_configuration_is_printed(tmp_path):
    result = train(tmp_path, "--cfg=job")
    assert result.returncode == 0, result.stderr
    assert "agent" in result.stdout
    assert "random_steps: 25600" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.program
def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path):
    result = train(tmp_path, "agent=td3", "agent.workflow.agent.discount=2")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: agent.workflow.agent.discount=2: must be between 0 and 1\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.program
def test_a_mistake_that_only_tracing_finds_leaves_no_run_behind(tmp_path):
    result = train(tmp_path, "agent/evolver=snes", "+agent.workflow.evolver.numbers.std_int=1", "iterations=1", *TINY)
    assert result.returncode == 2
    assert result.stderr == "error: unknown hyperparameter of SNES: std_int; did you mean std_init or lr_std_init?\n"
    assert not list(tmp_path.iterdir())
