"""The script for GPUs, rehearsed on a CPU: jobs in order, rows that survive, and the page that is made from them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "scripts" / "gpu.py")]
SMALL = ["S0", "S1 nsga2", "S1 qmix", "S4 one policy 1048576", "S6 physics inverted_pendulum/spring, 2 envs"]


@pytest.fixture(scope="module")
def page():
    """The modules of the page and of the jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        import gpu_page

        yield gpu_page


@pytest.mark.program
def test_a_rehearsal_that_is_killed_goes_on_and_loses_no_row(tmp_path, page):
    """Killed twice between its rows; the row that is half written is computed again."""
    draw = random.Random(0)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*COMMAND, str(tmp_path / "out"), "--rehearse", "--at-once", "2", "--only", *SMALL]
    for kill in (True, True, False):
        path = tmp_path / "out" / "rows.jsonl"
        before = page.read_rows(path, "job")
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
        while kill and process.poll() is None and len(page.read_rows(path, "job")) == len(before):
            time.sleep(0.05)
        if kill:
            time.sleep(draw.uniform(0, 2))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with path.open("a") as file:
                file.write('{"job": "S1 qm')
        else:
            assert process.wait(timeout=300) == 0
        assert page.read_rows(path, "job")[: len(before)] == before
        assert len(page.read_rows(path, "job")) > len(before)
    rows = page.read_rows(path, "job")
    assert sorted(row["job"] for row in rows) == sorted(["S0 limits", *SMALL[1:]])
    found = {row["job"]: row for row in rows}
    assert found["S1 qmix"]["codes"] == [0]
    assert [row["kind"] for row in found["S1 qmix"]["rows"]].count("evaluation") >= 2
    assert found["S4 one policy 1048576"]["env_steps_per_s"] > 0
    assert "| S6 physics inverted_pendulum/spring, 2 envs |" in page.format_page(found)
    began = time.monotonic()
    subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)  # all is done
    assert time.monotonic() - began < 30
    assert page.read_rows(path, "job") == rows


def test_every_job_belongs_to_a_stage_and_every_aim_to_a_job(page):
    from gpu_jobs import make_commands, make_timed

    jobs = [*make_timed(), *make_commands()]
    assert {job.split()[0] for job in jobs} == {f"S{i}" for i in range(1, 10)}
    for _, job, base, _ in page.BARS:
        assert {job, base} - {""} <= {*jobs}


def test_trainings_agree_if_counters_do_and_first_losses_nearly(page):
    def row(**changes):
        return {"env_steps": 10, "episodes": 1, "gradient_steps": 2, "loss": 1.0} | changes

    both = [row(), row(loss=2.0)]
    assert page.compare_trainings(both, both) == "equal"
    assert page.compare_trainings([row(loss=1.0009), row(loss=9.0)], both) == "equal"
    assert page.compare_trainings([row(loss=1.002), row()], both) == "first loss differs"
    assert page.compare_trainings([row(), row(loss=float("nan"))], both) == "loss is not finite"
    assert page.compare_trainings([row(env_steps=11), row()], both) == "counters differ"
    assert page.compare_trainings([], both) == "no rows"


def test_aims_are_open_until_they_are_measured(page):
    table = list(page.format_bars({}))
    assert all("| open |" in line for line in table[1:])
    rows = {"S3 PBT of 64": {"env_steps_per_s": 80.0}, "S3 PBT of 1": {"env_steps_per_s": 10.0}}
    assert any("| 8 | reached |" in line for line in page.format_bars(rows))
    rows["S3 PBT of 64"] = {"env_steps_per_s": 79.0}
    assert any("| 7.9 | missed |" in line for line in page.format_bars(rows))
    rows["S3 PBT of 64"] = {"error": "out of memory"}
    assert sum("| open |" in line for line in page.format_bars(rows)) == len(page.BARS)


def test_other_libraries_are_compared_where_both_have_run(page):
    rows = {"S9 updates of TD3, 32 members: evorl": {"ms": 1.0, "env_steps_per_s": 300.0}}
    assert not list(page.format_peers(rows))
    rows["S9 updates of TD3, 32 members: flax"] = {"ms": 1.0, "env_steps_per_s": 200.0}
    assert [*page.format_peers(rows)][1] == "| updates of TD3, 32 members | flax | 300 | 200 | 1.5 |"
    assert not list(page.format_speeds(rows))


def test_two_processes_are_compared_without_their_times(page):
    one = [{"return": 1.0, "compile_seconds": 3.0}, {"return": 2.0, "compile_seconds": 3.0}]
    other = [row | {"compile_seconds": 4.0} for row in one]
    assert "equal" in "".join(page.format_twins({"codes": [0, 0], "rows": one + other}))
    other[1] |= {"return": 2.5}
    assert "different" in "".join(page.format_twins({"codes": [0, 0], "rows": one + other}))
    assert not list(page.format_twins({"codes": [0, -9], "rows": one}))


@pytest.mark.program
def test_the_page_is_that_of_the_recorded_rows(page):
    check = [sys.executable, str(ROOT / "scripts" / "gpu_page.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_half_a_row_is_no_row(tmp_path, page):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"job": "a"}) + '\n{"job": "b\n[1]\n' + json.dumps({"job": "c"}))
    assert [row["job"] for row in page.read_rows(path, "job")] == ["a", "c"]


def test_a_row_after_half_a_row_is_whole(tmp_path, page):
    from json_rows import append_row

    path = tmp_path / "rows.jsonl"
    append_row(path, {"job": "a"})
    with path.open("a") as file:
        file.write('{"job": "b')
    append_row(path, {"job": "c"})
    append_row(path, {"job": "d"})
    assert [row["job"] for row in page.read_rows(path, "job")] == ["a", "c", "d"]
    assert path.read_text().count("\n") == 4
