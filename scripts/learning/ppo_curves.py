"""Compare PPO with and without value normalization: eleven evaluations of a run, mean of 8 seeds, 95 % interval.

python scripts/learning/ppo_curves.py                         all of them
python scripts/learning/ppo_curves.py notebook_1 cartpole     some, by the names of SETTINGS
python scripts/learning/ppo_curves.py notebook_6 --only no --set reward_scale=0.01     other hyperparameters

Options that are not named have their defaults. Each evaluation is 128 greedy episodes of every seed.
"""

import argparse
from typing import Any

import numpy as np

from evorl import Budget, Gymnax, OnPolicy, fit, stats
from evorl.agents import PPO

SETTINGS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any], dict[str, float]]] = {
    "notebook_1": (
        "CartPole-v1",
        150_000,
        {"num_envs": 16, "num_steps": 128, "batch_size": 512},
        {"hidden": (64, 64)},
        {"learning_rate": 1e-3},
    ),
    "notebook_6": (
        "CartPole-v1",
        200_000,
        {"num_envs": 16, "num_steps": 64},
        {"hidden": (32, 32)},
        {"learning_rate": 1e-3},
    ),
    "cartpole": ("CartPole-v1", 150_000, {}, {}, {}),
    "acrobot_64": ("Acrobot-v1", 300_000, {}, {"hidden": (64, 64)}, {}),
    "pendulum_64": ("Pendulum-v1", 1_000_000, {}, {"hidden": (64, 64)}, {}),
}


def curve(name: str, normalize_values: bool, others: dict[str, float]) -> tuple[list[int], np.ndarray]:
    """Return the env steps and the returns [evaluations, seeds]."""
    env_name, env_steps, sizes, networks, numbers = SETTINGS[name]
    env = Gymnax(env_name)
    options: Any = networks | numbers | others
    agent = PPO(**options)
    workflow = OnPolicy(env, agent, normalize_values=normalize_values, **sizes)
    training = fit(workflow, num_seeds=8, budget=Budget(env_steps=env_steps), evaluations=10)
    rows = [row for row in training.rows if row["kind"] == "evaluation"]
    return [row["env_steps"] for row in rows], np.array([row["seeds"]["return"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", choices=("no", "yes"), help="whether values are normalized; by default both")
    parser.add_argument("--set", action="append", default=[], help="NAME=NUMBER, a hyperparameter")
    arguments = parser.parse_args()
    others = {name: float(number) for name, _, number in (item.partition("=") for item in arguments.set)}
    for name in arguments.names or SETTINGS:
        for normalize_values in [arguments.only == "yes"] if arguments.only else [False, True]:
            steps, returns = curve(name, normalize_values, others)
            cells = [
                " ".join([name, *arguments.set]),
                "normalized" if normalize_values else "as they are",
                f"{steps[-1]:,}",
            ]
            cells += [f"{stats.MeanEstimate.from_scores(seeds):.0f}" for seeds in returns]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
