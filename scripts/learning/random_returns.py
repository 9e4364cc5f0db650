"""Evaluate random actions in every environment of evorl; a training compares its final return with the result.

python scripts/learning/random_returns.py    evorl/training/random_returns.json: mean and 95 % interval of 256 episodes

Environments in the file are not evaluated again; without the file all are.
"""

import json

from evorl.training.configuration import config, discovery, parts
from evorl.training.random_baseline import BASELINES_FILE, evaluate_random_policy
from evorl.training.records.json_cache import read_json
from evorl.types import Env

EPISODES = 256
WRAPPERS = ("delayed", "scaled", "frames", "partial")  # these need an environment to wrap


def main() -> None:
    found = read_json(BASELINES_FILE)
    for name in discovery.find_choices("env"):
        if name in WRAPPERS:
            continue
        env = parts.instantiate(config.to_plain_data(config.compose_config([f"env={name}"]))["env"], "env", Env)
        if repr(env) in found:
            continue
        found[repr(env)] = [round(value, 4) for value in evaluate_random_policy(env, EPISODES)]
        print(name, found[repr(env)], flush=True)
        BASELINES_FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
