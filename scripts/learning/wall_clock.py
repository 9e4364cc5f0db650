"""Train PBT against fixed settings, and evolution against gradients by wall-clock time, and record the rows.

python scripts/learning/wall_clock.py runs/wall_clock docs/rows

Trains the runs that the folder lacks, sequentially, so it can be stopped and started again. Then it writes the
evaluations as curves.jsonl and the population of the first seed of PBT as pbt.jsonl, from which
scripts/docs/pictures.py draws, and prints the last evaluations as a Markdown table. Each run has eight seeds in one
program. Settings are those of the experiments; the populations have PPO's declared priors and small networks.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments import machine

from evorl import stats
from evorl.training.records.rows import read_evaluations, read_rows

POPULATION = (
    "agent=pbt agent/inner=ppo env=pendulum num_seeds=8 env_steps=3_276_800 agent.workflow.steps_per_generation=5 "
    "agent.inner.workflow.num_envs=16 agent.inner.workflow.num_steps=128 agent.inner.workflow.eval_episodes=16 "
    "agent.inner.workflow.agent.hidden=[64,64]"
)
MEMBERS = 16
RUNS = {  # panel, label: a command line
    ("Pendulum, 16 PPOs", "PBT"): POPULATION,
    ("Pendulum, 16 PPOs", "fixed settings"): f"{POPULATION} agent/selection=none",
    ("CartPole", "OpenES"): "experiment=classic/openes_cartpole",
    ("CartPole", "CMA-ES"): "experiment=classic/cma_es_cartpole",
    ("CartPole", "PPO"): "experiment=classic/ppo_cartpole",
    ("CartPole", "DQN"): "experiment=classic/dqn_cartpole",
    ("Pendulum", "OpenES"): "experiment=classic/openes_pendulum",
    ("Pendulum", "CMA-ES"): "experiment=classic/cma_es_pendulum",
    ("Pendulum", "PPO"): "experiment=classic/ppo_pendulum",
    ("Pendulum", "SAC"): "experiment=classic/sac_pendulum",
}
FIXED = ["evaluations=20", "tensorboard=false"]
DIGITS = 6  # significant digits of recorded numbers


def train(folder: Path, panel: str, label: str, options: str) -> Path:
    """Return the folder of a run, which is trained first if it does not exist."""
    run = folder / f"{panel} {label}".lower().replace(",", "").replace(" ", "_")
    if not run.exists():
        begun = run.with_suffix(".begun")
        again = (
            [f"resume={begun}"] if (begun / "checkpoints").exists() else [*options.split(), *FIXED, f"run_dir={begun}"]
        )
        subprocess.run([sys.executable, "-m", "evorl.train", *again], check=True)
        begun.rename(run)
    return run


def round_numbers(value: Any) -> Any:
    """Return numbers in nested lists and dicts with DIGITS significant digits; null for NaN."""
    if isinstance(value, dict):
        return {name: round_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [round_numbers(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if value == value else None
    return value


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(round_numbers(row), separators=(",", ":")) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=Path)
    given = parser.parse_args()
    curves: list[dict[str, Any]] = []
    print(f"{machine()}\n\n| task | run | env steps per seed | seconds | compiling | mean of 8 seeds [95 %] |")
    print("|---|---|---|---|---|---|", flush=True)
    for (panel, label), options in RUNS.items():
        run = train(given.folder, panel, label, options)
        metrics, members = {label: "return"}, {}
        if options.startswith(POPULATION):
            metrics = {f"{label}, the fittest": "return", f"{label}, mean": "return_mean"}
            members = {"members": MEMBERS}
            if label == "PBT":
                history = [{"kind": "train", "members": row["members"]} for row in read_rows(run, "train").rows]
                for row in history:
                    row["members"] = {name: values[:1] for name, values in row["members"].items()}
                write_rows(given.rows / "pbt.jsonl", history)
        found = read_evaluations(run)
        for name, metric in metrics.items():
            for row in found:
                kept = {key: row[key] for key in ("env_steps", "seconds", "compile_seconds")}
                curves.append({"panel": panel, "label": name, **members, **kept, "returns": row["seeds"][metric]})
            last = found[-1]
            cells = [panel, name, f"{last['env_steps']:,}", f"{last['seconds']:.0f}", f"{last['compile_seconds']:.0f}"]
            mean = stats.MeanEstimate.from_scores(last["seeds"][metric])
            print(f"| {' | '.join(cells)} | {mean:.0f} |", flush=True)
    write_rows(given.rows / "curves.jsonl", curves)


if __name__ == "__main__":
    main()
