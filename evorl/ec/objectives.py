"""Functions for multi-objective optimization: Pareto ranks, crowding distance and hypervolume.

All objectives are maximized. An individual with a NaN objective is worse than any other.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl import tree
from evorl.errors import require, unknown_name_error
from evorl.metrics import split_components

Objectives = Mapping[str, float]  # weight by name; negative to minimize
WORD_BITS = 32  # individuals per word
WORST_FITNESS = -1e30  # replaces non-finite values, so that distances stay finite


def check_objectives(objectives: Objectives) -> None:
    """Raise OptionError unless each weight is a finite number other than 0."""
    for name, weight in objectives.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        finite = number and math.isfinite(weight) and weight != 0
        require(finite, f"objectives.{name}", weight, "must be a number, below 0 to minimize, above 0 to maximize")


def compute_objectives(objectives: Objectives, means: dict[str, Array]) -> Float[Array, "n m"]:
    """Return the weighted objectives, shape [n, m], computed from episode means, leaves [n, ...].

    Without objectives, the only one is the return. Each entry of a vector has its own name, such as place/1.
    """
    numbers, wanted = split_components(means, 1), objectives or {"return": 1.0}
    for name in wanted:
        if name not in numbers:
            raise unknown_name_error("objective", name, numbers)
    return jnp.stack([weight * numbers[name] for name, weight in wanted.items()], 1)


def sanitize_objectives(fitness: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Return the fitness, with WORST_FITNESS in all objectives of an individual if one of them is not finite."""
    whole = jnp.isfinite(fitness).all(1, keepdims=True)
    return jnp.where(whole, jnp.clip(fitness, WORST_FITNESS, -WORST_FITNESS), WORST_FITNESS)


def pack_bits(mask: Bool[Array, " n"]) -> UInt32[Array, " words"]:
    """Pack a mask into words: bit b of word w stands for individual b * words + w.

    With this order, the words lie next to each other in memory.
    """
    words = -(-mask.size // WORD_BITS)
    bits = jnp.pad(mask, (0, words * WORD_BITS - mask.size)).reshape(WORD_BITS, words).astype(jnp.uint32)
    return (bits << jnp.arange(WORD_BITS, dtype=jnp.uint32)[:, None]).sum(0, dtype=jnp.uint32)


def find_dominators(fitness: Float[Array, "n m"]) -> UInt32[Array, "words n"]:
    """Return, for each individual, the set of individuals that dominate it, as bits in the order of `pack_bits`.

    An individual dominates another if it is at least as good in all objectives and better in at least one.
    """
    n = len(fitness)
    words = -(-n // WORD_BITS)
    others = jnp.pad(fitness, ((0, words * WORD_BITS - n), (0, 0)), constant_values=-jnp.inf).reshape(
        WORD_BITS, words, -1
    )

    def add_dominators(bit: Int[Array, ""], table: UInt32[Array, "words n"]) -> UInt32[Array, "words n"]:
        all_as_good, one_better = jnp.bool_(True), jnp.bool_(False)
        for mine, theirs in zip(fitness.T, others[bit].T, strict=True):
            all_as_good &= theirs[:, None] >= mine
            one_better |= theirs[:, None] > mine
        return table | ((all_as_good & one_better).astype(jnp.uint32) << bit.astype(jnp.uint32))

    return jax.lax.fori_loop(0, WORD_BITS, add_dominators, jnp.zeros((words, n), jnp.uint32))


def compute_pareto_ranks(fitness: Float[Array, "n m"], wanted: int | None = None) -> Int[Array, " n"]:
    """Return the Pareto rank of each individual by non-dominated sorting (Deb et al. 2002).

    Rank 0 is the Pareto front; rank 1 is dominated only by rank 0, and so on. The computation stops once
    `wanted` individuals (by default all) have a rank; the remaining ones have rank n.
    """
    fitness, (n, m) = sanitize_objectives(fitness), fitness.shape
    if m == 1:
        return _rank_single_objective(fitness[:, 0], n if wanted is None else wanted)
    table = find_dominators(fitness)

    def has_unranked(loop: tuple[Array, Array]) -> Array:
        return tree.any_unbatched((loop[1] < n).sum() < (n if wanted is None else wanted))

    def peel(loop: tuple[Array, Array]) -> tuple[Array, Array]:
        i, rank = loop
        left = rank == n
        dominated = (table & pack_bits(left)[:, None]) != 0
        return i + 1, jnp.where(left & ~dominated.any(0), i, rank)

    return jax.lax.while_loop(has_unranked, peel, (jnp.int32(0), jnp.full(n, n, jnp.int32)))[1]


def _rank_single_objective(fitness: Float[Array, " n"], wanted: int) -> Int[Array, " n"]:
    """Return the ranks by sorting, since every value is a front, whose removal one by one would take n^2 time."""
    n, order = len(fitness), jnp.argsort(-fitness)
    values = fitness[order]
    first = jnp.append(True, values[1:] < values[:-1])  # of its front
    better = jax.lax.cummax(jnp.where(first, jnp.arange(n), 0))
    rank = jnp.where(better < wanted, jnp.cumsum(first, dtype=jnp.int32) - 1, n)
    return jnp.zeros(n, jnp.int32).at[order].set(rank)


def crowding_distance(fitness: Float[Array, "n m"], rank: Int[Array, " n"]) -> Float[Array, " n"]:
    """Return the crowding distance of each individual within its front.

    It is the distance between the two neighbors along an objective, relative to the width of the front,
    summed over the objectives. It is infinite at the ends of a front.

    Source: Deb et al. 2002, doi:10.1109/4235.996017, section III-B.
    """

    def crowd_objective(f: Float[Array, " n"]) -> Float[Array, " n"]:
        front, f, place = jax.lax.sort((rank, f, jnp.arange(len(f))), num_keys=2)
        new = front[1:] != front[:-1]
        first, last = jnp.append(True, new), jnp.append(new, True)
        low = jax.lax.cummax(jnp.where(first, jnp.arange(len(f)), 0))
        high = jax.lax.cummin(jnp.where(last, jnp.arange(len(f)), len(f) - 1), reverse=True)
        width = f[high] - f[low]
        gap = jnp.where(width > 0, (jnp.roll(f, -1) - jnp.roll(f, 1)) / jnp.where(width > 0, width, 1), 0.0)
        return jnp.zeros(len(f)).at[place].set(jnp.where(first | last, jnp.inf, gap))

    return jax.vmap(crowd_objective, 1)(sanitize_objectives(fitness)).sum(0)


def hypervolume(fitness: Float[Array, "n m"], reference: Float[Array, " m"]) -> Float[Array, ""]:
    """Return the exact hypervolume that points dominate above a reference point, for 2 or 3 objectives.

    It is computed by sweeps along the first objective.
    """
    m = fitness.shape[1]
    require(m in (2, 3), "hypervolume", f"{m} objectives", "is supported for 2 or 3 objectives only")
    reference = jnp.broadcast_to(jnp.asarray(reference, fitness.dtype), (m,))
    inside = (fitness > reference).all(1, keepdims=True)  # false for NaN
    points = jnp.where(inside, fitness - reference, 0.0)
    points = points[jnp.argsort(-points[:, 0])]
    x, y = points[:, 0], points[:, 1]
    depth = x - jnp.append(x[1:], 0.0)
    if m == 2:
        return (depth * jax.lax.cummax(y)).sum()
    z = jnp.sort(points[:, 2])
    slices = jax.vmap(lambda low: (depth * jax.lax.cummax(jnp.where(points[:, 2] >= low, y, 0.0))).sum())(z)
    return ((z - jnp.append(0.0, z[:-1])) * slices).sum()


def resolve_objectives(objectives: Objectives, count: int) -> Objectives:
    """Return the given objectives, or all `count` objectives of a problem if none are given."""
    return objectives or ({f"return/{i}": 1.0 for i in range(count)} if count > 1 else {"return": 1.0})
