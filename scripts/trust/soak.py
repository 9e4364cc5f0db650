"""Train for a long time, and measure whether memory, file handles, threads and speed of the process stay constant.

python scripts/trust/soak.py                                     30 minutes of TD3
python scripts/trust/soak.py --minutes 5 agent=cemrl env=inverted_pendulum

Prints a Markdown table of the medians of every tenth of the time. Then it prints how much the last third differs from
the first one, which begins after the first tenth. Speed is env steps per CPU second, so that other work on the machine
has little effect. There is one evaluation, because the length of evaluations depends on the policy. Linux only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("memory, MB", "file handles", "threads", "env steps per CPU s")
DEFAULT = ["agent=td3", "env=inverted_pendulum"]


def sample(pid: int) -> tuple[float, float, float, float]:
    """Return the resident MB, open files, threads and CPU seconds of a process."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    times = (proc / "stat").read_text().rpartition(")")[2].split()
    cpu = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    return int(status["VmRSS"].split()[0]) / 1000, len(list((proc / "fd").iterdir())), int(status["Threads"]), cpu


def env_steps(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    return json.loads(lines[-1])["env_steps"] if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("overrides", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = [f"minutes={arguments.minutes}", f"run_dir={run}", "evaluations=1", "checkpoint.minutes=1"]
        command = [sys.executable, "-m", "evorl.train", *arguments.overrides, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        samples, before = [], None
        while process.poll() is None:
            time.sleep(arguments.every)
            steps = env_steps(run)
            if process.poll() is not None or not steps:
                continue
            *held, cpu = sample(process.pid)
            if before is not None and cpu > before[1]:
                samples.append((*held, (steps - before[0]) / (cpu - before[1])))
            before = steps, cpu
        if process.returncode:
            sys.exit(process.returncode)
    tenths = [samples[i * len(samples) // 10 : (i + 1) * len(samples) // 10] for i in range(10)]
    print(f"| tenth | {' | '.join(NAMES)} |\n|---|{'---|' * len(NAMES)}")
    for i, tenth in enumerate(tenths):
        print(f"| {i + 1} | {' | '.join(f'{statistics.median(values):,.1f}' for values in zip(*tenth, strict=True))} |")
    first, last = samples[len(samples) // 10 : 4 * len(samples) // 10], samples[7 * len(samples) // 10 :]
    for name, a, b in zip(NAMES, zip(*first, strict=True), zip(*last, strict=True), strict=True):
        change = statistics.median(b) / statistics.median(a) - 1
        print(f"{name}: {change:+.2%}")


if __name__ == "__main__":
    main()
