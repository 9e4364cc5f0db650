"""Test evorl on a GPU: one small training of every workflow family, then timings of jobs that run alone on the GPU.

python scripts/gpu.py OUT                     all stages; rows are appended to OUT/rows.jsonl as they come
python scripts/gpu.py OUT --only S1 S6        some stages
python scripts/gpu.py OUT --only "S1 dqn"     some jobs
python scripts/gpu.py OUT --only CPU          the part of S1 that runs on CPUs; may run on another machine
python scripts/gpu.py OUT --rehearse          a rehearsal on a CPU, at tiny sizes
python scripts/gpu_page.py OUT                the tables of docs/howto/gpu.md from the rows

| stage | content |
|---|---|
| S0 | versions, device, and its limits: copies, matrix products in default and in highest precision |
| S1 | three iterations of every workflow family by `python -m evorl.train`, on the GPU and on the CPUs of its machine |
| S2 | PPO and SAC on Brax's ant (spring) and Playground's CheetahRun, and Brax's own trainers at the same sizes |
| S3 | PBT of PPO with 1, 8, 64 and 256 members |
| S4 | OpenES, low-rank ES and one shared policy on CartPole, MAP-Elites, CEM-RL |
| S5 | steps of 65,536 mazes; one PPO, one PLR and one ACCEL iteration on mazes |
| S6 | TD3 and SAC with 1, 128 and 1,024 environments, 1 and 64 seeds of PPO, a sweep of 64 trials in one program |
| S7 | two deterministic processes of one seed on one GPU, a sweep by two workers; the peak memory is in all rows |
| S8 | PPO and PBT on CheetahRun, with curves, in the time that is left |
| S9 | jobs of scripts/comparison at sizes for a GPU, by evorl and another library |

Every job runs in its own process. Timed jobs (S2 to S6, S9) compile in parallel, at the same time as the trainings of
S1, and wait without arrays on the GPU. When all are compiled, or at 60 % of the time, they run one after the other,
then the commands of S6 to S8. A job that has a row without an error is not run again, so that a run that was killed
continues. The page takes the last row of a job.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from gpu_jobs import Command, describe_machine, make_commands, make_timed, measure_limits, start_command, time_job
from json_rows import Row, append_row, read_rows

COMPILE_SHARE = 0.6  # share of the time after which timings start
KEPT_METRICS = ("kind", "env_steps", "episodes", "gradient_steps", "return", "compile_seconds", "diverged")
LIMITS = "S0 limits"
CPU = " on the CPU"  # end of the name of a training of S1 that runs on the CPU


class Rows:
    """The rows of a folder; each is on the disk before the next one is computed."""

    def __init__(self, out: Path) -> None:
        self._path = out / "rows.jsonl"
        self.done = {row["job"] for row in read_rows(self._path, "job") if is_success(row)}
        self._lock = threading.Lock()  # jobs run in threads

    def add(self, job: str, row: Row) -> None:
        with self._lock:
            append_row(self._path, {"job": job, **row})
        print(job, {name: value for name, value in row.items() if name != "rows"}, flush=True)


def is_success(row: Row) -> bool:
    """Return whether a job has ended without an error."""
    return "error" not in row and not any(row.get("codes", ()))


class Runner:
    """Runs the jobs that have no row yet, within a time limit."""

    def __init__(self, out: Path, only: Sequence[str], tiny: bool, limit: float, at_once: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._only, self._tiny, self._at_once = out, {*only}, tiny, at_once
        self._rows, self._limit, self._end = Rows(out), limit, time.monotonic() + limit
        self._own = [sys.executable, __file__, str(out), *["--rehearse"] * tiny, "--job"]
        self._timed, self._commands = make_timed(), make_commands()
        self._ready: dict[str, subprocess.Popen[str]] = {}
        self._processes: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("XDG_CACHE_HOME", str(self._out / "cache"))
        try:
            for job in self._find_missing([LIMITS]):
                done = subprocess.run([*self._own, job], capture_output=True, text=True, check=False)
                self._rows.add(job, parse_output(done.returncode, done.stdout, done.stderr))
            self._compile_all()
            for job in [job for job in self._timed if job in self._ready]:
                self._time(job)
            for job in self._find_missing([job for job in self._commands if not job.startswith("S1 ")]):
                self._run_command(job, self._end - time.monotonic())
        finally:
            for process in self._processes:
                process.kill()

    def _find_missing(self, jobs: Sequence[str]) -> list[str]:
        """Return the jobs that were chosen and have no row."""
        return [job for job in jobs if job not in self._rows.done and (not self._only or self._is_chosen(job))]

    def _is_chosen(self, job: str) -> bool:
        words = job.split()
        return bool({job, words[0], words[-1]} & self._only)

    def _compile_all(self) -> None:
        """Compile the timed jobs and run the trainings of S1, in parallel."""
        trainings = [job for job in self._commands if job.startswith("S1 ")]
        trainings += [] if self._tiny else [job + CPU for job in trainings]
        deadline = self._end - (1 - COMPILE_SHARE) * self._limit
        with ThreadPoolExecutor(self._at_once) as pool:
            waiting = [pool.submit(self._compile, job, deadline) for job in self._find_missing([*self._timed])]
            waiting += [
                pool.submit(lambda job: self._run_command(job, deadline - time.monotonic()), job)
                for job in self._find_missing(trainings)
            ]
            wait(waiting, timeout=max(deadline - time.monotonic(), 0))
            for one in waiting:
                one.cancel()
            for process in [one for one in self._processes if one not in self._ready.values()]:
                process.kill()
        for one in waiting:
            if not one.cancelled():
                one.result()

    def _compile(self, job: str, deadline: float) -> None:
        if time.monotonic() > deadline:
            return
        flags = " ".join([os.environ.get("XLA_FLAGS", ""), "" if self._tiny else self._timed[job].flags]).strip()
        quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"} if self._tiny else {}
        log = self._log_path(job)
        with log.open("w") as file:
            process = subprocess.Popen(
                [*self._own, job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=os.environ | {"XLA_FLAGS": flags} | quick,
            )
        self._processes.append(process)
        assert process.stdout is not None
        if any(line == "ready\n" for line in process.stdout):  # libraries may print other lines
            self._ready[job] = process
        elif process.wait() not in (-signal.SIGKILL, -signal.SIGTERM):
            self._rows.add(job, {"error": log.read_text()[-1500:]})

    def _time(self, job: str) -> None:
        process, left = self._ready[job], self._end - time.monotonic()
        if left < 0:
            return
        try:
            out, _ = process.communicate("go\n", timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            return
        self._rows.add(job, parse_output(process.returncode, out, self._log_path(job).read_text()))

    def _log_path(self, job: str) -> Path:
        return self._out / f"{job.replace('/', '-')}.log"

    def _run_command(self, job: str, left: float) -> None:
        if left < 20:
            return
        command = self._commands[job.removesuffix(CPU)]
        folders = [self._out / "runs" / f"{job.replace('/', '-')}-{i}" for i in range(command.copies)]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)  # of a training that was killed
        began = time.monotonic()
        environment = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} if job.startswith("S1 ") else {}
        environment |= {"JAX_PLATFORMS": "cpu"} if job.endswith(CPU) else {}
        processes = start_command(command, self._tiny, [str(one) for one in folders], environment)
        self._processes += processes
        codes: list[int] = []
        said: list[str] = []
        for process in processes:
            try:
                text, _ = process.communicate(timeout=max(began + left - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # a training saves and ends
                try:
                    text, _ = process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    text, _ = process.communicate()
            said += text.strip().splitlines()[-8 if process.returncode else -1 :]
            codes.append(process.returncode)
        if -signal.SIGKILL in codes:
            return
        rows = [row for folder in folders for row in read_metrics(folder, command)]
        self._rows.add(job, {"codes": codes, "seconds": time.monotonic() - began, "said": said, "rows": rows})


def read_metrics(folder: Path, command: Command) -> list[Row]:
    """Return the rows of a run, with the losses and some other metrics."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    kept = (*KEPT_METRICS, *command.metrics)
    return [{name: row[name] for name in row if name in kept or name.endswith("loss")} for row in rows]


def parse_output(code: int, out: str, err: str) -> Row:
    """Return the row that a job has printed as JSON in its last line, or its error."""
    try:
        return json.loads(out.strip().splitlines()[-1]) if code == 0 else {"error": err[-1500:]}
    except (IndexError, json.JSONDecodeError):
        return {"error": f"no row; {err[-1500:]}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="STAGE")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--seconds", type=float, default=540, help="when to end")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="number of processes that compile")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job == LIMITS:
        print(json.dumps(describe_machine() | measure_limits(args.rehearse)))
    elif args.job:
        print(json.dumps(time_job(make_timed()[args.job], args.rehearse)))
    else:
        Runner(args.out, args.only, args.rehearse, args.seconds, args.at_once).run()


if __name__ == "__main__":
    main()
