"""Compare the result of python -m evorl.autotune with the fastest of all combinations that it could try.

python scripts/benchmarks/autotune.py [--seconds 2] [agent=ppo env=cartpole ...]       some minutes; run it alone

Each combination runs in its own process and is measured once. The largest chunk is left out.
"""

import argparse
import itertools
from typing import Any

from evorl.cli import autotune
from evorl.training.configuration import config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("options", nargs="*", default=["agent=ppo", "env=cartpole"])
    given = parser.parse_args()
    places, layouts, chunks = autotune.list_candidate_groups(config.to_plain_data(config.compose_config(given.options)))
    groups = places, layouts, chunks[:-1]
    known: dict[tuple[Any, ...], float] = {}

    def measure(choice: autotune.Candidate) -> float:
        name = tuple(sorted(choice.items()))
        if name not in known:
            known[name] = autotune.measure_speed(given.options, choice, given.seconds)
        return known[name]

    found = autotune.search(groups, measure)
    tried = len(known)
    for parts in itertools.product(*([{}, *group] for group in groups)):
        measure({name: value for part in parts for name, value in part.items()})
    best = max(known, key=lambda name: known[name])
    print(f"\nautotune, {tried} trials: {measure(found):,.0f} env steps/s, {autotune.format_candidate(found)}")
    print(f"all {len(known)}: {known[best]:,.0f} env steps/s, {autotune.format_candidate(dict(best))}")
    print(f"autotune / best: {measure(found) / known[best]:.2f}")


if __name__ == "__main__":
    main()
