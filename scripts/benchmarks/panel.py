"""What the live panel costs: trainings in a terminal, with a traced profile, beside trainings that only write lines.

python scripts/benchmarks/panel.py [--repeats 5] [OPTION=VALUE ...]        some minutes; options are those of a training

In turn, each in a process of its own: wall seconds of ten million env steps without those of compiling. Run it alone.
"""

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

TRAINING = ["agent=puffer", "env=arcade/grid", "env_steps=10_000_000", "tensorboard=false", "evaluations=1"]


def seconds(options: list[str], terminal: bool) -> float:
    """Wall seconds of the rows of a training without its compilation."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "evorl.train", *options, f"run_dir={run_dir}", f"profile={terminal}".lower()]
        if terminal:
            pid, screen = pty.fork()
            if pid == 0:
                os.execvp(command[0], command)
            with open(screen, "rb", closefd=True) as shown:
                try:
                    while shown.read(1024):
                        pass
                except OSError:  # the other end of a terminal has gone
                    pass
            assert os.waitpid(pid, 0)[1] == 0
        else:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        last = json.loads((run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        return last["seconds"] - last["compile_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("options", nargs="*", default=[])
    given = parser.parse_args()
    pairs = []
    for _ in range(given.repeats):
        pairs.append([seconds([*TRAINING, *given.options], terminal) for terminal in (False, True)])
        print(f"lines {pairs[-1][0]:.2f} s   panel {pairs[-1][1]:.2f} s", flush=True)
    print(f"the panel takes {median(b / a - 1 for a, b in pairs):+.1%} (median of {given.repeats} pairs)")


if __name__ == "__main__":
    main()
