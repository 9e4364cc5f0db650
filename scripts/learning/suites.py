"""Train on one environment of each suite, and compare the returns with those of random actions.

pip install -e ".[suites]" && python scripts/learning/suites.py [--rows FILE] [SUITE ...]

Each suite has four seeds of PPO and four of an evolution strategy, each in one program; with continuous actions also
CEM-RL; and PBT of PPO on CheetahRun. The table has the mean of the last evaluation with its 95 % interval over seeds,
next to random actions. Options are those of the agents' files, except for the lengths of the runs and the numbers of
environments, which are listed here.
"""

import argparse
import datetime
from pathlib import Path

from trainings import is_above, keep, kept, trained

from evorl.stats import MeanEstimate
from evorl.training.configuration import config
from evorl.training.configuration.parts import make_task
from evorl.training.random_baseline import get_random_return


def ppo(env_steps: int) -> tuple[str, ...]:
    """Return the options of PPO with a learning rate that decays to 0 over the training."""
    sizes = ("agent.workflow.num_envs=32", "agent.workflow.num_steps=64")
    budget = (f"env_steps={env_steps}", "agent.workflow.agent.learning_rate=${linear:3e-4,0}")
    return ("agent=ppo", "num_seeds=4", *sizes, *budget, "evaluations=1")


ES = (
    "agent=openes",
    "num_seeds=4",
    "iterations=30",
    "agent.workflow.evolver.population_size=32",
    "agent.workflow.vbn_steps=1000",
    "agent.workflow.eval_episodes=32",
    "evaluations=1",
)
FEW = ("agent.workflow.eval_episodes=32",)
SHORT = "wrappers=[{time_limit: {steps: 100}}]"
JOBS: dict[str, list[tuple[str, ...]]] = {
    "gymnax": [
        ("env=gymnax/Catch-bsuite", *ppo(200_000)),
        ("env=gymnax/Catch-bsuite", *ES),
    ],
    "playground": [
        ("env=playground/CartpoleBalance", SHORT, *ppo(200_000), *FEW),
        ("env=playground/CartpoleBalance", SHORT, *ES),
        ("env=playground/CartpoleBalance", SHORT, "agent=cemrl", "iterations=15", "evaluations=1", *FEW),
        ("env=playground/CheetahRun", SHORT, "agent=pbt", "agent/inner=ppo", "iterations=3", "evaluations=1"),
    ],
    "jumanji": [
        ("env=jumanji/Knapsack-v1", *ppo(100_000)),
        ("env=jumanji/Snake-v1", SHORT, *ppo(100_000)),
        ("env=jumanji/Snake-v1", SHORT, *ES),
    ],
    "craftax": [
        ("env=craftax/Craftax-Classic-Symbolic-v1", *ppo(200_000), *FEW),
        ("env=craftax/Craftax-Classic-Symbolic-v1", SHORT, *ES),
    ],
    "pgx": [("env=pgx/2048", SHORT, *ppo(200_000)), ("env=pgx/connect_four", *ES)],
    "xland": [
        ("env=xland/MiniGrid-Empty-6x6", *ppo(200_000)),
        ("env=xland/MiniGrid-Empty-6x6", *ES),
    ],
    "navix": [("env=navix/Navix-Empty-6x6-v0", *ppo(200_000)), ("env=navix/Navix-Empty-6x6-v0", *ES)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=list(JOBS))
    parser.add_argument("--rows", type=Path, help="JSON lines that are kept: what stands there is not run again")
    args = parser.parse_args()
    known = {row["name"]: row for row in kept(args.rows)}
    print(f"{datetime.date.today()}\n\n| | env steps | return of seeds | random actions | above random | seconds |")
    print("|---|---|---|---|---|---|")
    for options in (one for suite in args.suites for one in JOBS[suite]):
        agent = next(one for one in options if one.startswith("agent="))
        name = f"{agent.removeprefix('agent=')} on {options[0].removeprefix('env=')}"
        row = known.get(name)
        if row is None:
            env = make_task(
                config.to_plain_data(
                    config.compose_config([one for one in options if one.startswith(("env=", "wrappers="))])
                )
            )
            chance, (end, _) = get_random_return(env), trained(options)
            returns = end["seeds"]["return"] if "seeds" in end else [end["return"]]
            row = {
                "name": name,
                "steps": end["env_steps"],
                "returns": returns,
                "seconds": end["seconds"],
                "random": chance,
            }
            keep(args.rows, row)
        chance = row["random"]
        of_chance = f"{chance[0]:.3g} [{chance[1]:.3g}, {chance[2]:.3g}]"
        cells = f"{row['steps']:,} | {MeanEstimate.from_scores(row['returns']):.3g} | {of_chance}"
        print(f"| {name} | {cells} | {is_above(row['returns'], chance)} | {row['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
