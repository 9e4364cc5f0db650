"""A replay with priorities beside flashbax's: add 16 rows, sample 256, update 256, in a donated scan.

taskset -c 0 python scripts/benchmarks/peers_priorities.py [--repeats 21]     after pip install flashbax==0.1.3

CPU microseconds a round, medians in turn, in replays that are full of rows of 42 numbers.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from peers_timing import Program, in_turn, surroundings

from evorl.replay import PrioritizedReplay

ROUNDS, ADDED, DRAWN = 500, 16, 256
ROW = {
    "obs": jnp.zeros(17),
    "action": jnp.zeros(6),
    "reward": jnp.float32(0),
    "next": jnp.zeros(17),
    "end": jnp.bool_(0),
}
KEYS = jax.random.split(jax.random.key(0), ROUNDS)


def rows(n: int) -> Any:
    return jax.tree.map(lambda x: jnp.ones((n, *x.shape), x.dtype), ROW)


def errors(key: jax.Array, reward: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (DRAWN,)) + 1e-3 * reward


def of_evorl(size: int) -> Program:
    fill = lambda i, replay: replay.add(rows(1000), jnp.ones(1000, bool))  # noqa: E731
    full = jax.jit(lambda replay: jax.lax.fori_loop(0, size // 1000, fill, replay))

    def once(replay: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        replay = replay.add(rows(ADDED), jnp.ones(ADDED, bool))
        sample = replay.sample(key, (DRAWN,))
        seen = sample.weight.sum() + sample.rows["obs"].sum()
        return replay.update(sample.index, errors(key, sample.rows["reward"])), seen

    run = lambda replay: jax.lax.scan(once, replay, KEYS)[0]  # noqa: E731
    return Program(run, (full(PrioritizedReplay().empty(size, ROW)),), ROUNDS, restart=lambda replay: replay)


def of_flashbax(size: int) -> Program:
    import flashbax  # pyright: ignore[reportMissingImports]

    buffer = flashbax.make_prioritised_flat_buffer(
        size, DRAWN, DRAWN, add_sequences=False, add_batch_size=ADDED, priority_exponent=0.6
    )
    fill = jax.jit(lambda state: jax.lax.fori_loop(0, size // ADDED, lambda i, s: buffer.add(s, rows(ADDED)), state))

    def once(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state = buffer.add(state, rows(ADDED))
        batch = buffer.sample(state, key)
        first = batch.experience.first
        seen = batch.probabilities.sum() + first["obs"].sum()
        return buffer.set_priorities(state, batch.indices, errors(key, first["reward"])), seen

    run = lambda state: jax.lax.scan(once, state, KEYS)[0]  # noqa: E731
    return Program(run, (fill(buffer.init(ROW)),), ROUNDS, restart=lambda state: state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    print(surroundings(options.repeats))
    for size in (100_000, 1_000_000):
        timed = in_turn({"evorl": of_evorl(size), "flashbax": of_flashbax(size)}, "us", options.repeats)
        for name, row in timed.items():
            print(f"{size:9,} rows  {name:9} {1e6 * row['cpu_s'] / ROUNDS:6.1f} CPU us")
        print(f"{size:9,} rows  evorl over flashbax: {1 / timed['flashbax']['ratio_cpu']:.2f} in CPU time")


if __name__ == "__main__":
    main()
