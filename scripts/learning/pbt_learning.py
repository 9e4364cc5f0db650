"""Compare PBT with its ablations: PPO or SAC on Pendulum, 16 members, 8 seeds, equal env steps for all.

python scripts/learning/pbt_learning.py ppo                     PBT, PBT-CSO, fixed settings, no exploit, a grid
python scripts/learning/pbt_learning.py sac pbt fixed           some of them; sac members share one replay buffer
python scripts/learning/pbt_learning.py sac pbt --no-warmup     selection from the first generation on, in equal steps

Members train for 40 % of the steps with which the tuned experiment (classic/ppo_pendulum, classic/sac_pendulum) solves
the task. Each member has its own settings, drawn at first from the same priors. After the last generation all members
are evaluated again, in 128 fresh episodes: `mean` is over members, `best` is the member that was the fittest in the
last generation. Intervals are 95 % over seeds.

fixed        no member is replaced, and settings stay as drawn
unexploited  settings are copied and perturbed as in PBT, weights are not copied
grid         learning rates at intervals of half a decade, with the agent's defaults otherwise and a replay buffer for
             each; the best rate is compared with the rates that PBT ends with
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from experiments import machine

from evorl import (
    PBT,
    PPO,
    SAC,
    Budget,
    Gymnax,
    LogUniform,
    OffPolicy,
    OneMinus,
    OnPolicy,
    Perturb,
    SharedReplay,
    Swarm,
    Truncation,
    Uniform,
    Vmapped,
    fit,
    stats,
)
from evorl.parts import read_numbers
from evorl.population import NoSelection, Pairs

MEMBERS, SEEDS = 16, 8
RATES = LogUniform(1e-5, 1e-1)
DISCOUNTS = OneMinus(LogUniform(1e-3, 2e-1))
ENV = Gymnax("Pendulum-v1")


def unexploited(population: Any) -> Any:
    """Return the same population, whose members copy no weights; PBT still assigns their settings."""
    kind = type("Unexploited", (type(population),), {"copy_members": lambda self, state, source: state})
    return kind(population.inner, population.size)


def ppo() -> tuple[Any, Any, dict[str, int], int]:
    """Return the population, a member for the grid, the steps of PBT and its generations."""
    agent = PPO(hidden=(64, 64), reward_scale=0.1, entropy_coef=0.0)
    fixed = OnPolicy(ENV, agent, num_envs=16, num_steps=128, batch_size=256, eval_episodes=16)
    searched = replace(
        agent,
        learning_rate=RATES,
        discount=DISCOUNTS,
        gae_lambda=OneMinus(LogUniform(1e-2, 0.5)),
        clip=LogUniform(0.02, 0.5),
        entropy_coef=LogUniform(1e-5, 1e-1),
    )
    # 204,800 of the tuned experiment's 501,760 steps
    return Vmapped(replace(fixed, agent=searched), MEMBERS), fixed, {"steps_per_generation": 5, "warmup_steps": 0}, 20


def sac() -> tuple[Any, Any, dict[str, int], int]:
    agent = SAC(hidden=(64, 64))
    fixed = OffPolicy(
        ENV, agent, 4, 1, 2, policy_delay=1, batch_size=64, capacity=200_000, random_steps=16_000, eval_episodes=16
    )
    searched = replace(
        agent,
        actor_lr=RATES,
        critic_lr=RATES,
        temperature_lr=RATES,
        discount=DISCOUNTS,
        target_entropy=Uniform(-2.0, 0.0),
    )
    steps = {"steps_per_generation": 150, "warmup_steps": 600}  # in the proportions of EvoRL's table 5
    # 11,800 of the tuned experiment's 30,996 steps, random ones included
    return SharedReplay(replace(fixed, agent=searched), MEMBERS), fixed, steps, 14


AGENTS = {"ppo": ppo, "sac": sac}


def arm(agent: str, name: str, warmup: bool) -> dict[str, Any]:
    """Train one arm, and return its final returns and learning rates, [SEEDS] or [SEEDS, members]."""
    population, _, steps, generations = AGENTS[agent]()
    if not warmup:
        generations += steps["warmup_steps"] // steps["steps_per_generation"]
        steps["warmup_steps"] = 0
    options: dict[str, Any] = {
        "pbt": {"selection": Truncation(0.2), "variation": Perturb()},
        "pbt_cso": {"selection": Pairs(), "variation": Swarm()},
        "fixed": {"selection": NoSelection()},
        "unexploited": {"selection": Truncation(0.2), "variation": Perturb()},
    }[name]
    if name == "unexploited":
        population = unexploited(population)
    pbt = PBT(population, eval_rounds=8, **steps, **options)
    result = fit(
        pbt,
        budget=Budget(iterations=generations),
        num_seeds=SEEDS,
        evaluations=1,
    )
    seeds = [row for row in result.rows if row["kind"] == "evaluation"][-1]["seeds"]
    rates = pbt.search_space.decode_by_name(result.state.points)
    rate = next(values for key, values in rates.items() if key in ("agent.learning_rate", "agent.actor_lr"))
    return {
        "mean": seeds["return_mean"],
        "best": seeds["return"],
        "rates": np.asarray(rate),
        "steps": result.rows[-1]["env_steps"] // MEMBERS,
        "seconds": result.progress.seconds,
    }


def grid(agent: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the learning rates and the mean final return of each."""
    _, fixed, steps, generations = AGENTS[agent]()
    rates = np.geomspace(RATES.low, RATES.high, 9)
    names = [name for name in read_numbers(fixed)["agent"] if name in ("learning_rate", "actor_lr", "critic_lr")]
    copies = Vmapped(replace(fixed, eval_episodes=128), len(rates))
    numbers = {"agent": {name: jnp.float32(rates) for name in names}}
    iterations = steps["steps_per_generation"] * generations + steps["warmup_steps"]

    def train_and_evaluate(key: Any) -> Any:
        key_init, key_steps, key_play = jax.random.split(key, 3)
        state = copies.init(key_init, numbers)
        state, _ = jax.lax.scan(copies.step, state, jax.random.split(key_steps, iterations))
        return copies.evaluate(state, key_play)["return"]

    keys = jax.random.split(jax.random.key(1), SEEDS)
    returns = jax.jit(lambda keys: jax.lax.map(train_and_evaluate, keys))(keys)
    return rates, np.asarray(returns).mean(0)


def shown(values: Any) -> str:
    return f"{stats.MeanEstimate.from_scores(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("arms", nargs="*", default=["pbt", "pbt_cso", "fixed", "unexploited", "grid"])
    parser.add_argument("--no-warmup", action="store_true")
    arguments = parser.parse_args()
    print(
        f"{machine()}\n\n| arm | steps of a member | mean [95 %] | best [95 %] | learning rates at the end | seconds |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for name in arguments.arms:
        if name == "grid":
            continue
        found = arm(arguments.agent, name, not arguments.no_warmup)
        low, middle, high = np.quantile(found["rates"], (0.1, 0.5, 0.9))
        rates = f"{middle:.1e} ({low:.0e} to {high:.0e})"
        print(f"| {name} | {found['steps']:,} | {shown(found['mean'])} | {shown(found['best'])} | {rates} | "
              f"{found['seconds']:.0f} |", flush=True)  # fmt: skip
    if "grid" in arguments.arms:
        rates, returns = grid(arguments.agent)
        print("\n| learning rate | mean return |\n|---|---|")
        for rate, value in zip(rates, returns, strict=True):
            print(f"| {rate:.1e} | {value:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
