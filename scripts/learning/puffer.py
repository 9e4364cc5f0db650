"""Ablate Puffer's trainer on the image grid, one part at a time; prints the table of docs/algorithms/puffer.md.

python scripts/learning/puffer.py [--rows FILE]                                  8 minutes on one core
python scripts/learning/puffer.py --rows FILE --on arcade/pong --seeds 8 --env-steps 12_000_000      for a GPU

All variants have the options of experiment=arcade/puffer, and --seeds seeds. The score is the return of the last
evaluation; on the grid it is converted to the share of targets that are reached. A row is kept in FILE, and is not run
again.
"""

import argparse
import datetime
from pathlib import Path

from trainings import keep, kept, trained

from evorl.stats import MeanEstimate

OF_PRIORITIES = ("alpha", "beta")
SHUFFLED = "agent.workflow.sampling._target_=Shuffled", *(f"~agent.workflow.sampling.{one}" for one in OF_PRIORITIES)
VARIATIONS: dict[str, tuple[str, ...]] = {
    "all": (),
    "advantages once": ("agent.workflow.refresh=never",),
    "advantages once an epoch": ("agent.workflow.refresh=epoch",),
    "segments in random order": SHUFFLED,
    "steps in random order": (*SHUFFLED, "agent.workflow.sampling.length=1"),
    "Adam, rate 1e-3": (
        "agent.workflow.agent.optimizer._target_=Adam",
        "~agent.workflow.agent.optimizer.momentum",
        "~agent.workflow.agent.optimizer.steps",
        "agent.workflow.agent.learning_rate=${cosine:1e-3,0}",
    ),
    "constant rate": ("agent.workflow.agent.learning_rate=0.05", "agent.workflow.sampling.beta=0.2"),
    "no bounds on ratios": ("agent.workflow.agent.max_rho=inf", "agent.workflow.agent.max_c=inf"),
}


def learned(label: str, options: argparse.Namespace) -> dict:
    """Train a variant, and return the final evaluation as a row."""
    given = ["experiment=arcade/puffer", f"env={options.on}", f"env_steps={options.env_steps}", "devices=1"]
    given += [f"num_seeds={options.seeds}", "agent.workflow.eval_episodes=512", "evaluations=1"]
    end, seconds = trained([*given, *VARIATIONS[label]])
    return {"label": label, "on": options.on, "returns": end["seeds"]["return"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="arcade/grid")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--env-steps", type=int, default=5_000_000)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    known = {(row["on"], row["label"]): row for row in kept(options.rows)}
    print(f"{datetime.date.today()}, {options.on}\n\n| | score | seconds |\n|---|---|---|")
    for label in VARIATIONS:
        row = known.get((options.on, label))
        if row is None:
            row = learned(label, options)
            keep(options.rows, row)
        scores = [(x + 1) / 2 for x in row["returns"]] if options.on == "arcade/grid" else row["returns"]
        print(f"| {label} | {MeanEstimate.from_scores(scores):.3f} | {row['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
