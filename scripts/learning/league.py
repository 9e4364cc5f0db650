"""Compare the exploitability of a league and of self-play on Leduc poker, at the same PPO and main-agent steps.

python scripts/learning/league.py [--iterations 1000] [--seeds 4] [--entropy 0.01] [--smoke]

Exploitability is that of each main agent's last policy, and for the league also that of an equilibrium among all its
policies. Intervals are 95 %, by Student's t over seeds.
"""

import argparse
import datetime
import time
from typing import Any

import jax
import numpy as np

from evorl import PPO, League, OnPolicy
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.leduc import Leduc
from evorl.leagues import Matchmaking, Roster
from evorl.leagues.training_oracle import make_single_player_env
from evorl.stats import MeanEstimate

LEAGUE, ALONE = Roster(), Roster(1, 0, 0, 1)
SELF_PLAY = Matchmaking(self_play=1.0, prioritized=0.0, snapshot_steps=float("inf"))


def workflow(roster: Roster, entropy: float, matches: Matchmaking) -> League:
    game: Any = ExtensiveFormGame(Leduc())
    seen: Any = make_single_player_env(game)
    agent = PPO(hidden=(64, 64), entropy_coef=entropy)
    learner: Any = OnPolicy(seen, agent, 64, 32, 4, 256)
    return League(game, learner, roster, matches=matches)


def judged(league: League, iterations: int, seeds: int, parts: int) -> list[dict[str, Any]]:
    """Train all seeds; after each part of the iterations, record the evaluation and the costs by name, [seeds]."""

    @jax.jit
    def begin(key: jax.Array) -> Any:
        return jax.vmap(lambda key: league.init(key))(jax.random.split(key, seeds))

    @jax.jit
    def train(states: Any, key: jax.Array) -> Any:
        def one(states: Any, key: jax.Array) -> tuple[Any, Any]:
            states, metrics = jax.vmap(league.step)(states, jax.random.split(key, seeds))
            return states, {name: metrics[name] for name in ("env_steps", "snapshots", "resets", "lost")}

        states, metrics = jax.lax.scan(one, states, jax.random.split(key, iterations // parts))
        return (
            states,
            jax.tree.map(lambda x: x.sum(0), metrics),
            jax.vmap(league.evaluate)(states, jax.random.split(key, seeds)),
        )

    states, found, totals = begin(jax.random.key(0)), [], None
    began = time.process_time()
    for part in range(parts):
        states, spent, judged = train(states, jax.random.key(part))
        spent = jax.tree.map(np.asarray, spent)
        totals = spent if totals is None else {name: totals[name] + spent[name] for name in spent}
        found.append(jax.tree.map(np.asarray, judged) | totals | {"cpu_s": time.process_time() - began})
        found[-1] |= {
            "policies": np.asarray(states.num_snapshots.sum(1)),
            "of_main": totals["env_steps"] / league.roster.num_learners,
        }
    return found


def interval(x: np.ndarray) -> str:
    return f"{MeanEstimate.from_scores(x):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--entropy", type=float, default=PPO().entropy_coef, help="entropy coefficient")
    parser.add_argument("--smoke", action="store_true", help="few iterations, to see that it runs")
    given = parser.parse_args()
    iterations, parts = (4, 2) if given.smoke else (given.iterations, 5)
    print(f"{datetime.date.today()}, {given.seeds} seeds, entropy_coef {given.entropy}\n")
    print("| | steps of the main agent | of all | exploitability | of the equilibrium | policies | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name, roster, matches in (("self-play", ALONE, SELF_PLAY), ("league", LEAGUE, Matchmaking())):
        league = workflow(roster, given.entropy, matches)
        for row in judged(league, iterations, given.seeds, parts):
            exploited = interval(row["exploitability"])
            pool = interval(row["league_exploitability"]) if name == "league" else ""
            counts = f"{row['of_main'].mean():,.0f} | {row['env_steps'].mean():,.0f} | {exploited} | {pool}"
            print(f"| {name} | {counts} | {row['policies'].mean():.0f} | {row['cpu_s']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
