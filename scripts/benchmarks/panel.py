"""Measure the cost of the live panel: its share of a core while metrics of a training arrive at a high rate.

python scripts/benchmarks/panel.py [--seconds 20] [--rows 20]

The panel shows rows at most twice a second, and is drawn four times a second, on a terminal of 110 columns whose output
is discarded. Traces of parts (profile=true) take, after the first, at most 1 % of the time, by their schedule.
"""

import argparse
import os
import time

from rich.console import Console

from evorl.training.records.display import Panel

ROW = {
    "kind": "train", "iteration": 1, "env_steps": 64, "gradient_steps": 8, "return": 1.0, "progress": 0.5,
    "host_seconds": 0.1, "compile_seconds": 1.0, "evaluation_seconds": 0.5,
    "actor_loss": -0.01, "critic_loss": 4.5, "entropy": 1.25, "kl": 0.01,
}  # fmt: skip


def share(seconds: float, rows: float) -> float:
    """Return the panel's CPU seconds per wall second, without those of the loop itself."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=110)
        panel = Panel("a training", console=console)
        spent = []
        for show in (panel, lambda row: None):
            began, cpu = time.perf_counter(), time.process_time()
            while (now := time.perf_counter() - began) < seconds:
                show(ROW | {"seconds": 2 + now})
                time.sleep(1 / rows)
            spent.append(time.process_time() - cpu)
            panel.close()
    return (spent[0] - spent[1]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rows", type=float, default=20)
    given = parser.parse_args()
    print(f"the panel takes {share(given.seconds, given.rows):.2%} of a core")


if __name__ == "__main__":
    main()
