"""Measure the exploitability of OpenSpiel's NFSP on Kuhn poker, to compare with scripts/learning/nfsp.py.

python scripts/learning/peers_nfsp.py [--seeds 4] [--episodes 5_000 10_000 20_000]

It is OpenSpiel's JAX program with the settings of its example for Kuhn poker, whose full length is 3 million episodes:
a network of 128, a replay buffer of 200,000, a reservoir of 2 million, epsilon from 0.06. Needs open_spiel, chex and
flax.
"""

# pyright: reportMissingImports=false

import argparse
import datetime
import time
from typing import Any

import numpy as np
from open_spiel.python import policy, rl_environment
from open_spiel.python.algorithms import exploitability
from open_spiel.python.jax import nfsp

from evorl.stats import MeanEstimate

WHOLE = 3_000_000  # episodes over which epsilon decays
SETTINGS: Any = {"replay_buffer_capacity": 200_000, "epsilon_start": 0.06, "epsilon_end": 0.001}


def table(game: Any, agents: list[Any]) -> Any:
    """Return the average policies as a table over the information states."""
    found: Any = policy.TabularPolicy(game)
    for state, probabilities in zip(found.states, found.action_probability_array, strict=True):
        player, legal = state.current_player(), state.legal_actions()
        seen: dict[str, Any] = {"info_state": [None] * 2, "legal_actions": [None] * 2, "current_player": player}
        seen["info_state"][player], seen["legal_actions"][player] = state.information_state_tensor(player), legal
        step = rl_environment.TimeStep(observations=seen, rewards=None, discounts=None, step_type=None)
        with agents[player].temp_mode_as(nfsp.MODE.AVERAGE_POLICY):
            chances = agents[player].step(step, is_evaluation=True).probs
        probabilities[legal] = np.asarray(chances)[legal]
    return found


def run(seed: int, at: list[int]) -> list[tuple[int, float, float]]:
    """Train one seed, and return (env steps, exploitability, CPU seconds) after each number of episodes.

    The CPU seconds include compilation.
    """
    np.random.seed(seed)
    env: Any = rl_environment.Environment("kuhn_poker", players=2)
    env.seed(seed)
    seen, actions = env.observation_spec()["info_state"][0], env.action_spec()["num_actions"]
    settings = SETTINGS | {"epsilon_decay_duration": WHOLE}
    agents = [nfsp.NFSP(i, seen, actions, [128], 2_000_000, 0.1, seed=2 * seed + i, **settings) for i in range(2)]
    found, steps, begin = [], 0, time.process_time()
    for episode in range(1, 1 + max(at)):
        now = env.reset()
        while not now.last():
            now = env.step([agents[now.observations["current_player"]].step(now).action])
            steps += 1
        for agent in agents:
            agent.step(now)
        if episode in at:
            spent = time.process_time()
            found.append((steps, exploitability.exploitability(env.game, table(env.game, agents)), spent - begin))
            begin += time.process_time() - spent
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--episodes", type=int, nargs="+", default=[5_000, 10_000, 20_000])
    args = parser.parse_args()
    found = np.array([run(seed, args.episodes) for seed in range(args.seeds)])  # [seeds, times, 3]
    print(f"{datetime.date.today()}, {args.seeds} seeds\n")
    print(f"| episodes | env steps | exploitability [95 %] | CPU s of each |\n{'|---' * 4}|")
    for i, episodes in enumerate(args.episodes):
        steps, values, seconds = found[:, i].T
        row = f"{MeanEstimate.from_scores(values):.3f} | {seconds.mean():.1f}"
        print(f"| {episodes:,} | {steps.mean():,.0f} | {row} |")


if __name__ == "__main__":
    main()
