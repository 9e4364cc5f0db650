"""Measure what the start of a command costs: CPU seconds, user and system time, in fresh processes.

python scripts/benchmarks/start.py                     this checkout
python scripts/benchmarks/start.py --before COMMIT     the same with an earlier commit, in alternation

The commands are `import evorl`, `--cfg job`, and two iterations of PPO on CartPole. A first run of each, which is not
counted, fills the caches of compiled programs and of Python's bytecode. Both checkouts have caches of their own. Each
figure is the median of --rounds runs, followed by the smallest and the largest.
"""

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from before_after import ROOT, open_commit

PPO = ["-m", "evorl.train", "agent=ppo", "env=cartpole"]
COMMANDS = {
    "`import evorl`": ["-c", "import evorl"],
    "`--cfg job`": [*PPO, "--cfg", "job"],
    "PPO on CartPole, 2 iterations": [*PPO, "iterations=2"],
}


def measure(root: Path, arguments: list[str], folder: Path) -> float:
    """Return the CPU seconds of a Python process with the evorl of a checkout, run in a folder with its caches."""
    own = {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | own
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-P", *arguments]
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(roots: dict[str, Path], rounds: int) -> None:
    """Print the CPU seconds of every command for each checkout and, with two of them, the ratio of the medians."""
    ratio = " | after / before" * (len(roots) > 1)
    print(f"| CPU s | {' | '.join(roots)}{ratio} |\n|{'---|' * (1 + len(roots) + bool(ratio))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folders = {label: Path(folder, label) for label in roots}
        for path in folders.values():
            path.mkdir()
        for name, arguments in COMMANDS.items():
            times: dict[str, list[float]] = {label: [] for label in roots}
            for _, label in itertools.product(range(rounds + 1), roots):
                times[label].append(measure(roots[label], arguments, folders[label]))
            found = [times[label][1:] for label in roots]
            medians = [statistics.median(each) for each in found]
            cells = [f"{statistics.median(each):.2f} [{min(each):.2f}, {max(each):.2f}]" for each in found]
            if ratio:
                cells.append(f"{medians[1] / medians[0]:.2f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="a commit")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with ExitStack() as stack:
        before = {"before": stack.enter_context(open_commit(given.before))} if given.before else {}
        compare(before | {"after" if before else "this checkout": ROOT}, given.rounds)


if __name__ == "__main__":
    main()
