"""Writes what random actions earn in every environment that evorl ships, which a training's end is compared with.

python scripts/learning/random_returns.py    evorl/training/random_returns.json: mean and 95 % interval of 256 episodes

What the file has is not played again; without the file all are.
"""

import json

from evorl.training.configuration import config, discovery, parts
from evorl.training.records.remembered import read
from evorl.training.reference import SHIPPED, played
from evorl.types import Env

EPISODES = 256
WRAPPERS = ("delayed", "scaled", "frames", "partial")  # which ask for an environment to wrap


def main() -> None:
    found = read(SHIPPED)
    for name in discovery.choices("env"):
        if name in WRAPPERS:
            continue
        env = parts.make(config.plain(config.load([f"env={name}"]))["env"], "env", Env)
        if repr(env) in found:
            continue
        found[repr(env)] = [round(value, 4) for value in played(env, EPISODES)]
        print(name, found[repr(env)], flush=True)
        SHIPPED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
