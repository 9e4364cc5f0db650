"""Draw the README's picture: PBT of PPO against fixed settings, and evolution against gradients by wall-clock time.

python scripts/learning/readme_picture.py runs/readme docs/evolution_and_gradients.png

Trains the runs that the folder lacks, sequentially, so it can be stopped and started again. Then it draws the picture,
and prints the last evaluations as a Markdown table. Each run has eight seeds in one program; bands are 95 % intervals
of the mean over seeds. Settings are those of the experiments; the populations have PPO's declared priors and small
networks.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from experiments import machine

from evorl import stats
from evorl.training.records.rows import read_evaluations

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
SECONDS = (20, 50, 100, 200)
FIXED = ["evaluations=20", "tensorboard=false"]


def rows(folder: Path, panel: str, label: str, options: str) -> list[dict[str, Any]]:
    """Return the evaluations of a run, and train it first if it does not exist."""
    run = folder / f"{panel} {label}".lower().replace(",", "").replace(" ", "_")
    if not run.exists():
        begun = run.with_suffix(".begun")
        again = (
            [f"resume={begun}"] if (begun / "checkpoints").exists() else [*options.split(), *FIXED, f"run_dir={begun}"]
        )
        subprocess.run([sys.executable, "-m", "evorl.train", *again], check=True)
        begun.rename(run)
    return read_evaluations(run)


def of_seeds(found: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return a metric of the rows, shape [evaluations, seeds]."""
    return np.array([row["seeds"][name] for row in found], float)


def band(axis: Any, x: np.ndarray, returns: np.ndarray, label: str, **style: Any) -> None:
    """Plot the mean over seeds and its interval."""
    (line,) = axis.plot(x, returns.mean(1), label=label, marker=".", **style)
    axis.fill_between(
        x, *np.transpose([stats.mean_interval(seeds) for seeds in returns]), color=line.get_color(), alpha=0.2
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    panels = list(dict.fromkeys(panel for panel, _ in RUNS))
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.2))
    print(f"{machine()}\n\n| task | run | env steps of a seed | seconds | compiling | mean of 8 seeds [95 %] |")
    print("|---|---|---|---|---|---|", flush=True)
    for (panel, label), options in RUNS.items():
        axis, found = axes[panels.index(panel)], rows(given.folder, panel, label, options)
        curves = {label: of_seeds(found, "return")}
        if options.startswith(POPULATION):
            x = np.array([row["env_steps"] for row in found]) / MEMBERS / 1000
            curves = {f"{label}, the fittest": curves[label], f"{label}, mean": of_seeds(found, "return_mean")}
        else:
            x = np.array([row["seconds"] for row in found])
            axis.set_xscale("log")
            axis.set_xticks(SECONDS, map(str, SECONDS))
            axis.minorticks_off()
        colour = f"C{[name for place, name in RUNS if place == panel].index(label)}"
        for (name, returns), style in zip(curves.items(), ("-", "--"), strict=False):
            band(axis, x, returns, name, color=colour, linestyle=style)
            last = found[-1]
            cells = [panel, name, f"{last['env_steps']:,}", f"{last['seconds']:.0f}", f"{last['compile_seconds']:.0f}"]
            print(f"| {' | '.join(cells)} | {stats.MeanEstimate.from_scores(returns[-1]):.0f} |", flush=True)
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel("thousand env steps of a member" if panel == panels[0] else "seconds, 8 seeds in one program")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("greedy return")
    figure.tight_layout()
    figure.savefig(given.picture, dpi=110)


if __name__ == "__main__":
    main()
