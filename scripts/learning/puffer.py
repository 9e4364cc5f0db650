"""Puffer's trainer on the image grid with each of its parts taken away; prints the table of docs/agents/puffer.md.

python scripts/learning/puffer.py [--rows FILE]                                  8 minutes on one core
python scripts/learning/puffer.py --rows FILE --on arcade/pong --seeds 8 --env-steps 12_000_000      for a GPU

All have the options of experiment=arcade/puffer, and so many seeds; what is scored is the return of the last
evaluation, of a grid as the part of its targets that is reached. A row is kept in FILE, and is not run again.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evorl.stats import interval
from evorl.training.records.rows import evaluations

SHUFFLED = "agent.workflow.sampling._target_=evorl.workflows.sampling.Shuffled"
VARIATIONS: dict[str, tuple[str, ...]] = {
    "all": (),
    "advantages once": ("agent.workflow.refresh=never",),
    "advantages once an epoch": ("agent.workflow.refresh=epoch",),
    "segments in random order": (SHUFFLED,),
    "steps in random order": (SHUFFLED, "agent.workflow.sampling.length=1"),
    "Adam, rate 1e-3": (
        "agent.workflow.agent.optimizer._target_=evorl.agents.train_state.Adam",
        "~agent.workflow.agent.optimizer.momentum",
        "~agent.workflow.agent.optimizer.steps",
        "agent.hyperparams.learning_rate=1e-3",
    ),
    "constant rate": ("agent.hyperparams.anneal_steps=inf",),
    "no bounds on ratios": ("agent.hyperparams.max_rho=inf", "agent.hyperparams.max_c=inf"),
}


def learned(label: str, options: argparse.Namespace) -> dict:
    """What a training ends with."""
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        given = ["experiment=arcade/puffer", f"env={options.on}", f"env_steps={options.env_steps}", f"run_dir={run}"]
        given += [
            f"num_seeds={options.seeds}",
            "agent.workflow.eval_episodes=512",
            "evaluations=1",
            "tensorboard=false",
            "devices=1",
        ]
        command = [sys.executable, "-m", "evorl.train", *given, *VARIATIONS[label]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[3:])}\n{done.stderr[-2000:]}")
        end, seconds = evaluations(run)[-1], time.perf_counter() - began
    return {"label": label, "on": options.on, "returns": end["seeds"]["return"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="arcade/grid")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--env-steps", type=int, default=5_000_000)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    lines = options.rows.read_text(encoding="utf-8").splitlines() if options.rows and options.rows.exists() else []
    kept = {(row["on"], row["label"]): row for row in map(json.loads, lines)}
    print(f"{datetime.date.today()}, {options.on}\n\n| | score | seconds |\n|---|---|---|")
    for label in VARIATIONS:
        row = kept.get((options.on, label))
        if row is None:
            row = learned(label, options)
            if options.rows:
                with options.rows.open("a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)
        scores = [(x + 1) / 2 for x in row["returns"]] if options.on == "arcade/grid" else row["returns"]
        low, high = interval(scores)
        print(
            f"| {label} | {sum(scores) / len(scores):.3f} [{low:.3f}, {high:.3f}] | {row['seconds']:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
