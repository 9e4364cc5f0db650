"""Train PPO on each arcade game and compare the returns of four seeds with random actions, as in arcade.md.

python scripts/learning/arcade.py --rows arcade.jsonl                     5 million steps of each, hours on one core
python scripts/learning/arcade.py --rows few.jsonl --env-steps 600_000    as in docs/environments/arcade.md
python scripts/learning/arcade.py pong snake                              of some games
python scripts/learning/arcade.py --experiment puffer --rows puffer.jsonl 5 million steps with Puffer, 12 minutes

A row is kept in --rows when a game is done, and is not run again. All games have the options of experiment=arcade/ppo,
or of another experiment there, whose learning rate decays to 0 over the training. The table compares the mean of the
last evaluation, with its 95 % interval over seeds, with random actions. "halfway" is the midpoint between the random
return and the maximal return, if that is known.
"""

import argparse
import datetime
from pathlib import Path

from trainings import is_above, keep, kept, trained

from evorl.stats import MeanEstimate
from evorl.training.configuration import config
from evorl.training.configuration.discovery import find_choices
from evorl.training.configuration.parts import make_task
from evorl.training.random_baseline import get_random_return

# maximal returns, without rewards for hits of the ball
MOST = {"cartpole": 200.0, "pong": 21.0, "breakout": 864.0, "connect_four": 1.0, "grid": 1.0}
GAMES = [name.removeprefix("arcade/") for name in find_choices("env") if name.startswith("arcade/")]


def learned(game: str, env_steps: int, experiment: str) -> dict:
    """Train on a game, and return the final evaluation as a row."""
    options = [f"experiment=arcade/{experiment}", f"env=arcade/{game}", f"env_steps={env_steps}", "evaluations=1"]
    end, seconds = trained([*options, "devices=1"])
    chance = get_random_return(make_task(config.to_plain_data(config.compose_config([f"env=arcade/{game}"]))))
    returns = end["seeds"]["return"]
    return {"game": game, "steps": end["env_steps"], "returns": returns, "random": chance, "seconds": seconds}


def told(row: dict) -> str:
    """Format a row of the table."""
    mean, (random, *chance) = sum(row["returns"]) / len(row["returns"]), row["random"]
    halfway = (random + MOST[row["game"]]) / 2 if row["game"] in MOST else None
    cells = [row["game"], f"{row['steps']:,}", f"{MeanEstimate.from_scores(row['returns']):.3g}"]
    cells += [f"{random:.3g} [{chance[0]:.3g}, {chance[1]:.3g}]", is_above(row["returns"], row["random"])]
    reached = "" if halfway is None else f"{halfway:.3g}: {'yes' if mean >= halfway else 'no'}"
    cells += [reached, f"{row['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=GAMES)
    parser.add_argument("--env-steps", type=int, default=5_000_000)
    parser.add_argument("--experiment", default="ppo")
    parser.add_argument("--rows", type=Path, help="JSON lines that are kept: what stands there is not run again")
    args = parser.parse_args()
    known = {row["game"]: row for row in kept(args.rows)}
    print(f"{datetime.date.today()}\n\n| | env steps | return of seeds | random | above random | halfway | seconds |")
    print("|---|---|---|---|---|---|---|")
    for game in args.games:
        row = known.get(game)
        if row is None:
            row = learned(game, args.env_steps, args.experiment)
            keep(args.rows, row)
        print(told(row), flush=True)


if __name__ == "__main__":
    main()
