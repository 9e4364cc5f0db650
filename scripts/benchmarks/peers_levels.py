"""Compare the level buffer with jaxued's LevelSampler: equal results where the rules agree, and the time of a round.

taskset -c 0 python scripts/benchmarks/peers_levels.py [--repeats 9]    after
pip install --no-deps jaxued==0.0.1 chex toolz

A round draws 32 levels, updates their scores and inserts 32 new ones, duplicates checked, in a full buffer of 4,000
mazes of 13 x 13 cells, by rank: CPU milliseconds, medians in turn, of scans of 20 rounds in a donated state.

The rules agree on distinct levels with distinct scores that arrive one at a time. For this, the age counter of jaxued
is advanced before each insertion, because it chooses the level to replace by the ages before the insertion. The rules
differ in this: jaxued lets a batch age one by one, keeps the old level on a tie, sets the age of a repeated level to 0,
and makes the staleness distribution C uniform if all ages are 0.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_timing import Program, in_turn, surroundings

from evorl import tree
from evorl.envs.maze import RandomWalls, equal
from evorl.ued import Curation, LevelBuffer

jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]  jaxued 0.0.1 was written for an older jax

CAPACITY, N, ROUNDS = 4000, 32, 20
TEMPERATURE, STALENESS = 0.3, 0.5
SETTINGS = Curation(temperature=TEMPERATURE, staleness=STALENESS)
WALLS = RandomWalls(13, 13, fewest=60, most=60)


def mazes(seed: int, *shape: int) -> Any:
    """Sample random levels of evorl, leaves [*shape, ...]."""
    keys = jax.random.split(jax.random.key(seed), shape)
    draw = lambda key: WALLS.sample(key, WALLS.default_params)  # noqa: E731
    for _ in shape:
        draw = jax.vmap(draw)
    return jax.jit(draw)(keys)


def of_jaxued(levels: Any) -> Any:
    """Convert levels to jaxued's type."""
    from jaxued.environments.maze import Level  # pyright: ignore[reportMissingImports]

    words = lambda x: x.astype(jnp.uint32)  # noqa: E731
    size: Any = jnp.full(levels.direction.shape, 13, jnp.uint32)
    return Level(levels.grid, words(levels.goal), words(levels.agent), words(levels.direction), size, size)


def sampler(capacity: int, **options: Any) -> Any:
    from jaxued.level_sampler import LevelSampler  # pyright: ignore[reportMissingImports]

    given = {"temperature": TEMPERATURE}
    return LevelSampler(
        capacity, staleness_coeff=STALENESS, prioritization="rank", prioritization_params=given, **options
    )


def agreement(capacity: int, operations: int) -> tuple[int, float]:
    """Return the number of replaced levels and the largest relative difference of a replay probability.

    Levels are integers. evorl draws the replayed levels, and jaxued gets the same ones. Any other difference
    raises an AssertionError.
    """
    peer, random = sampler(capacity), np.random.default_rng(0)
    theirs, ours = peer.initialize(jnp.int32(0)), LevelBuffer.empty(capacity, jnp.int32(0))
    same = lambda a, b: a == b  # noqa: E731
    insert = jax.jit(lambda x, i, s: x.insert_levels(i, s, s, same, SETTINGS))
    draw = jax.jit(lambda x, key: x.sample_indices(key, 4, SETTINGS))
    update = jax.jit(lambda x, places, s: x.update_scores(places, s, s))
    weigh, chances = jax.jit(peer.level_weights), jax.jit(lambda x: x.replay_probabilities(SETTINGS))
    put, again = jax.jit(peer.insert), jax.jit(peer.update_batch)
    differs, replaced = 0.0, 0
    for i in range(operations):
        score = jnp.asarray(random.normal(size=4), jnp.float32)
        if i < 2 or random.random() < 0.7:
            full = int(ours.size) == capacity
            ours = insert(ours, jnp.int32([i]), score[:1])
            count = theirs["episode_count"] + 1
            theirs, place = put(theirs | {"episode_count": count}, jnp.int32(i), score[0])
            theirs |= {"episode_count": count, "timestamps": jnp.minimum(theirs["timestamps"], count)}
            replaced += full and int(place) >= 0
        else:
            places, ours = draw(ours, jax.random.key(i))
            for place in places:
                count = theirs["episode_count"] + 1
                theirs |= {"timestamps": theirs["timestamps"].at[place].set(count), "episode_count": count}
            kept = np.unique(places, return_index=True)[1]  # repeated indices have no defined result
            kept = jnp.asarray(np.resize(kept, 4))
            ours, theirs = update(ours, places[kept], score[kept]), again(theirs, places[kept], score[kept])
        filled = np.asarray(ours.score_table.valid_mask)
        np.testing.assert_array_equal(ours.levels, theirs["levels"])
        np.testing.assert_array_equal(ours.score_table.score, theirs["scores"])
        ages = np.asarray(theirs["episode_count"] - theirs["timestamps"])
        np.testing.assert_array_equal(ours.score_table.age, ages * filled)
        if (ages * filled).any():
            p, q = np.asarray(chances(ours))[filled], np.asarray(weigh(theirs))[filled]
            differs = max(differs, float((np.abs(p - q) / np.maximum(q, 1e-30)).max()))
    return replaced, differs


def of_evorl(full: Any, new: Any, scores: jax.Array, keys: jax.Array) -> Program:
    """Return a program that runs rounds of evorl's buffer, filled with `full`."""

    def once(held: LevelBuffer, given: Any) -> tuple[LevelBuffer, jax.Array]:
        key, levels, score = given
        places, held = held.sample_indices(key, N, SETTINGS)
        seen = held.get_levels(places).goal.sum()
        return held.update_scores(places, score[0], score[0]).insert_levels(
            levels, score[1], score[1], equal, SETTINGS
        ), seen

    enter = jax.jit(
        lambda held, levels, score: held.insert_levels(levels, score, score, equal, SETTINGS), donate_argnums=0
    )
    held = LevelBuffer.empty(CAPACITY, tree.index(full, 0))
    for i in range(0, CAPACITY, N):
        held = enter(held, tree.index(full, slice(i, i + N)), scores.reshape(-1)[i % 1000 : i % 1000 + N])
    run = lambda held: jax.lax.scan(once, held, (keys, new, scores))[0]  # noqa: E731
    return Program(run, (held,), ROUNDS, restart=lambda held: held)


def theirs_too(full: Any, new: Any, scores: jax.Array, keys: jax.Array) -> Program:
    """Return a program that runs the same rounds of jaxued's sampler, filled with `full`."""
    peer = sampler(CAPACITY, duplicate_check=True)

    def once(held: Any, given: Any) -> tuple[Any, jax.Array]:
        key, levels, score = given
        held, (places, levels_drawn) = peer.sample_replay_levels(held, key, N)
        held = peer.update_batch(held, places, score[0])
        return peer.insert_batch(held, levels, score[1])[0], levels_drawn.goal_pos.sum()

    full, new = of_jaxued(full), of_jaxued(new)
    held = peer.initialize(tree.index(full, 0)) | {"size": jnp.int32(0), "episode_count": jnp.int32(0)}
    enter = jax.jit(lambda held, levels, score: peer.insert_batch(held, levels, score)[0], donate_argnums=0)
    for i in range(0, CAPACITY, N):
        held = enter(held, tree.index(full, slice(i, i + N)), scores.reshape(-1)[i % 1000 : i % 1000 + N])
    run = lambda held: jax.lax.scan(once, held, (keys, new, scores))[0]  # noqa: E731
    return Program(run, (held,), ROUNDS, restart=lambda held: held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--operations", type=int, default=2000)
    options = parser.parse_args()
    print(surroundings(options.repeats))
    replaced, differs = agreement(64, options.operations)
    print(f"{options.operations} operations on 64 places: levels, scores and ages are the same, {replaced} replaced;")
    print(f"probabilities differ by at most {differs:.1e} of them")
    given = mazes(0, CAPACITY), mazes(1, ROUNDS, N), jax.random.uniform(jax.random.key(2), (ROUNDS, 2, N))
    keys = jax.random.split(jax.random.key(3), ROUNDS)
    timed = in_turn({"evorl": of_evorl(*given, keys), "jaxued": theirs_too(*given, keys)}, "us", options.repeats)
    for name, row in timed.items():
        print(
            f"{name:8} {1e3 * row['cpu_s'] / ROUNDS:7.3f} CPU ms a round, compiled in {row['compile_cpu_s']:.1f} CPU s"
        )
    print(f"jaxued over evorl: {timed['jaxued']['ratio_cpu']:.1f} in CPU time")


if __name__ == "__main__":
    main()
