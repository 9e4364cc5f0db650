"""Compare VDN and QMIX on the two-step game, where a sum of values is not enough: their returns and value tables.

python scripts/learning/two_step.py [--seeds 8] [--iterations 1000]

The game is from Rashid et al. 2018 (arXiv:1803.11485, section 5). The first member's first move leads to a state where
every joint action pays 7, or to one where [[0, 1], [1, 8]] is paid. All actions are random. VDN therefore learns the
least-squares fit of the second table, -1.5, 2.5, 2.5 and 6.5, and plays for 7. The output has, for each learner, the
greedy return of each seed, and the values of joint actions in the two states that pay, means over seeds.
"""

import argparse
import datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import DQN, OffPolicy, Vmapped
from evorl.agents import ValueDecomposition
from evorl.envs.games import TwoStep
from evorl.networks import MonotonicMixer, SumMixer

ENV = TwoStep()
LEARNERS = {"vdn": SumMixer(), "qmix": MonotonicMixer()}


def workflow(mixer: SumMixer | MonotonicMixer) -> OffPolicy:
    """Return a workflow of 16 random episodes, then 8 updates on 128 steps of all episodes so far."""
    agents = DQN(hidden=(64,), learning_rate=1e-3, epsilon=1.0, tau=0.02)
    agent = ValueDecomposition(agents, mixer)
    sizes: Any = {"num_envs": 16, "num_steps": 2, "num_updates": 8, "policy_delay": 1, "batch_size": 128}
    return OffPolicy(ENV, agent, **sizes, capacity=32_768, random_steps=512, eval_episodes=1)


def trained(mixer: SumMixer | MonotonicMixer, seeds: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the greedy return of each seed [seeds], and its values of joint actions [seeds, place, first, second]."""
    population = Vmapped(workflow(mixer), seeds)
    agent: Any = workflow(mixer).agent

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, iterations + 2)
        state = population.init(keys[0])
        state, _ = jax.lax.scan(population.step, state, keys[1:-1])
        tables = jax.vmap(lambda of: jnp.stack([table(of.actor.params, place) for place in (1, 2)]))(state.agent)
        return population.evaluate(state, keys[-1])["return"], tables

    def table(params: dict, place: int) -> jax.Array:
        obs = ENV.step(jax.random.key(0), jnp.int32(0), {"agent": jnp.array([place - 1, 0])}, None)[1].obs
        _, values = agent.agent.network.apply(
            params["agent"], None, agent.team.observer.observe("agent", obs), method="step"
        )
        joint = [[jnp.stack([values[0, i], values[1, j]]) for j in range(2)] for i in range(2)]
        # both members get the reward, and the mixed value is their sum
        return jnp.stack([jnp.stack([agent.mix_values(params["mixer"], x, obs) for x in row]) for row in joint]) / 2

    returns, tables = jax.jit(run)(jax.random.key(0))
    return np.asarray(returns), np.asarray(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=1000, help="of 16 episodes")
    args = parser.parse_args()
    print(f"{datetime.date.today()}, {args.seeds} seeds, {16 * args.iterations:,} episodes\n")
    print("| | plays for, by seed | worth where all pays 7 | worth where [[0, 1], [1, 8]] is paid |\n|---|---|---|---|")
    for name, mixer in LEARNERS.items():
        returns, tables = trained(mixer, args.seeds, args.iterations)
        cells = [", ".join(f"{x:.2f}" for x in np.ravel(of)) for of in tables.mean(0)]
        print(f"| {name} | {', '.join(f'{x:g}' for x in returns)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
