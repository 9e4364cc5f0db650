"""Train every learner of discrete actions in a game where most actions are illegal, and check that none is taken.

python scripts/trust/legal.py [AGENT ...] [--steps 1_000_000]

At each step a member observes the value of each of five choices. At most three of them are legal, often only one; the
illegal ones have the highest values. The reward after an illegal choice is NaN, and so are returns, weights and
evaluations from then on. Learners for a single team play without opponents. Prints a line for each learner.
"""

import argparse
import datetime
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from omegaconf import open_dict

from evorl import Budget, fit
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask
from evorl.training import runs
from evorl.training.configuration import config
from evorl.types import TimeStep

CHOICES, ILLEGAL_BONUS = 5, 2.0
ONE_TEAM = "vdn", "qmix"
OF_SEVERAL = "ippo", "mappo", "ia2c", "iimpala", "idqn", "idiscrete_sac", "maddpg", "maac", "nfsp", "openes"
FEWER_UPDATES = "agent.workflow.num_envs=64", "agent.workflow.num_steps=4", "agent.workflow.num_updates=2"
OPTIONS: dict[str, tuple[str, ...]] = dict.fromkeys(("idqn", "idiscrete_sac", "vdn", "qmix"), FEWER_UPDATES)


@struct.dataclass
class DrawnState:
    worth: Any  # values of the choices, {group: [members, CHOICES]}
    legal: Any  # the same shapes, bool
    steps: Any  # steps so far, []


@dataclass(frozen=True)
class Drawn:
    """Game in which each member chooses among values that are drawn again at each step."""

    crew: int = 3
    boss: int = 2
    max_episode_steps: int = 25

    default_params = None
    fresh_reset = True

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return {name: n for name, n in (("crew", self.crew), ("boss", self.boss)) if n}

    @property
    def observation_space(self) -> Dict:
        seen = ObsWithActionMask(Box(0.0, 1.0 + ILLEGAL_BONUS, (CHOICES,)), (CHOICES,))
        return Dict({name: Members(seen, n) for name, n in self.groups.items()})

    @property
    def action_space(self) -> Dict:
        return Dict({name: Members(Discrete(CHOICES), n) for name, n in self.groups.items()})

    def drawn(self, key: jax.Array, steps: Any) -> tuple[DrawnState, Any]:
        worth, legal = {}, {}
        for i, (name, n) in enumerate(self.groups.items()):
            key_worth, key_one, key_more = jax.random.split(jax.random.fold_in(key, i), 3)
            one = jax.nn.one_hot(jax.random.randint(key_one, (n,), 0, CHOICES), CHOICES, dtype=bool)
            drawn = jax.random.uniform(key_more, (n, CHOICES))
            more = drawn <= jnp.sort(drawn, -1)[:, 1:2]
            legal[name] = one | (more & jax.random.bernoulli(key_one, 0.5, (n, 1)))
            worth[name] = jax.random.uniform(key_worth, (n, CHOICES)) + ILLEGAL_BONUS * ~legal[name]
        obs = {name: {"obs": worth[name], "legal": legal[name]} for name in worth}
        return DrawnState(worth, legal, steps), obs

    def reset(self, key: jax.Array, params: Any) -> tuple[DrawnState, Any]:
        del params
        return self.drawn(key, jnp.int32(0))

    def step(self, key: jax.Array, env_state: DrawnState, action: Any, params: Any) -> tuple[DrawnState, TimeStep]:
        del params

        def earned(name: str) -> jax.Array:
            took = jax.nn.one_hot(action[name], CHOICES, dtype=bool)
            worth = (env_state.worth[name] * took).sum(-1)
            return jnp.where((env_state.legal[name] & took).any(-1), worth, jnp.nan)

        reward = {name: earned(name) for name in self.groups}
        state, obs = self.drawn(key, env_state.steps + 1)
        return state, TimeStep(obs, reward, jnp.bool_(False), state.steps >= self.max_episode_steps)


def finite(rows: list[Any]) -> bool:
    """Return whether the returns of all rows with a finished episode, and of evaluations, are finite."""
    return bool(np.isfinite([row["return"] for row in rows if row.get("episodes", 1)]).all())


def trained(name: str, steps: int) -> tuple[bool, int, float]:
    """Train a learner; return whether it took no illegal action, the env steps, and its last return."""
    members = {"crew": 3, "boss": 0} if name in ONE_TEAM else {"crew": 1, "boss": 1} if name == "nfsp" else {}
    cfg = config.compose_config([f"agent={name}", "env=leduc", f"env_steps={steps}", *OPTIONS.get(name, ())])
    with open_dict(cfg):
        cfg.env = {"_target_": "legal.Drawn", **members}
    workflow, _ = runs.build(cfg)
    budget = Budget(env_steps=steps)
    training = fit(workflow, budget=budget, chunk=runs.get_chunk_size(config.to_plain_data(cfg)), evaluations=4)
    rows = [row for row in training.rows if "return" in row]
    numbers = [x for x in jax.tree.leaves(training.state) if jnp.issubdtype(x.dtype, jnp.floating)]
    learned = not any(bool(jnp.isnan(x).any()) for x in numbers)
    return finite(rows) and learned, int(training.progress.totals["env_steps"][0]), rows[-1]["return"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", default=[*OF_SEVERAL, *ONE_TEAM])
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    print(
        datetime.date.today(),
        "\n\n| agent= | env steps | all actions legal | return at the end | CPU s |\n|---|---|---|---|---|",
    )
    for name in args.agents:
        began = time.process_time()
        legal, steps, earned = trained(name, args.steps)
        took = time.process_time() - began
        print(f"| {name} | {steps:,} | {'yes' if legal else 'NO'} | {earned:.3g} | {took:.0f} |", flush=True)


if __name__ == "__main__":
    main()
