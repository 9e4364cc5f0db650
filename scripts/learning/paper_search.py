"""Compare policy search with table 1 of EvoRL (arXiv:2501.15129, section 5.2.1): 2000 iterations, 16 seeds.

python scripts/learning/paper_search.py                                      all of it, for a GPU
python scripts/learning/paper_search.py --agents openes --envs hopper --hidden 16 --episodes 1
python scripts/learning/paper_search.py --agents ars --hidden 16 --option iterations=5 --option num_seeds=2

The return of a seed is the mean of 128 episodes with the distribution's center after the last iteration. The table has
the mean of the seeds with its 95 % interval, the best seed, and the paper's best of 16. CMA-ES runs with small networks
only.
"""

import argparse
import itertools

import numpy as np
from experiments import machine, train

from evorl import stats

AGENTS = ("ars", "openes", "vanilla_es", "cma_es")
SETTINGS = ((16, 16), (16, 1), (256, 16), (256, 1))  # width of both hidden layers, episodes of a fitness
BEST = {  # table 1: the best seed of each agent, for every environment and setting
    "ant": (
        (2368.85, 3224.73, 2838.81, 2449.74),
        (1675.04, 2581.69, 2060.51, 1863.62),
        (349.61, 2357.23, 1347.56),
        (68.19, 100.50, 995.85),
    ),
    "hopper": (
        (2848.12, 2046.94, 1920.72, 1958.89),
        (2333.21, 1894.04, 2071.13, 1896.59),
        (2786.01, 2561.93, 2569.93),
        (2282.49, 2987.82, 2884.96),
    ),
    "walker2d": (
        (4288.57, 4567.66, 2442.28, 3465.87),
        (3493.26, 4544.91, 2743.47, 4300.73),
        (4755.73, 4332.87, 3780.70),
        (3786.71, 4172.71, 3615.59),
    ),
    "halfcheetah": (
        (15727.93, 6183.75, 9028.43, 9122.02),
        (13265.43, 7793.73, 8514.64, 9594.04),
        (10059.23, 8747.80, 6637.56),
        (7750.28, 6831.58, 6073.02),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--envs", nargs="+", choices=BEST, default=list(BEST))
    parser.add_argument("--hidden", nargs="+", type=int, choices=(16, 256), default=(16, 256))
    parser.add_argument("--episodes", nargs="+", type=int, choices=(16, 1), default=(16, 1))
    parser.add_argument("--option", action="append", default=[], help="of python -m evorl.train")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    print("| agent | environment | hidden | episodes | iterations | mean [95 %] | best | paper's best | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for agent, env, (i, (width, episodes)) in itertools.product(arguments.agents, arguments.envs, enumerate(SETTINGS)):
        place = AGENTS.index(agent)
        if width not in arguments.hidden or episodes not in arguments.episodes or place >= len(BEST[env][i]):
            continue
        options = [f"env={env}", f"agent.workflow.agent.hidden=[{width},{width}]"]
        options += [f"agent.workflow.fitness_episodes={episodes}", *arguments.option]
        row = train(f"paper/{agent}", options)
        returns = np.atleast_1d(row["seeds"]["return"] if "seeds" in row else row["return"])
        cells = [
            agent,
            env,
            f"[{width}, {width}]",
            str(episodes),
            str(row["iteration"]),
            f"{stats.MeanEstimate.from_scores(returns):.0f}",
        ]
        paper = BEST[env][i][place]
        cells += [f"{returns.max():.0f}", f"{paper:.0f}", f"{row['seconds']:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
