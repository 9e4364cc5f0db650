"""Several objectives: what is told of them, who dominates whom, how crowded a front is, and what it is worth.

All are maximized; a member with a NaN among them is worse than any other.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from evorl import tree
from evorl.errors import require, unknown_name_error
from evorl.metrics import split_components

Objectives = Mapping[str, float]  # by name what it weighs, below 0 where less is better
WORD_BITS = 32  # members in a word
WORST_FITNESS = -1e30  # in place of what is not finite, so that distances are numbers


def check_objectives(objectives: Objectives) -> None:
    """Raises OptionError where a weight says not which way is better."""
    for name, weight in objectives.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        finite = number and math.isfinite(weight) and weight != 0
        require(finite, f"objectives.{name}", weight, "must be a number, below 0 to minimize, above 0 to maximize")


def compute_objectives(objectives: Objectives, means: dict[str, Array]) -> Float[Array, "n m"]:
    """The objectives of members, of means over their episodes, leaves [n, ...]; of none named, the return.

    Of a vector each number has a name of its own, such as place/1.
    """
    numbers, wanted = split_components(means, 1), objectives or {"return": 1.0}
    for name in wanted:
        if name not in numbers:
            raise unknown_name_error("objective", name, numbers)
    return jnp.stack([weight * numbers[name] for name, weight in wanted.items()], 1)


def sanitize_objectives(fitness: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Fitness with WORST_FITNESS in all objectives of a member that has a NaN, and within it and -WORST_FITNESS."""
    whole = ~jnp.isnan(fitness).any(1, keepdims=True)
    return jnp.where(whole, jnp.clip(fitness, WORST_FITNESS, -WORST_FITNESS), WORST_FITNESS)


def pack_bits(mask: Bool[Array, " n"]) -> UInt32[Array, " words"]:
    """Bits of which the b-th of word w stands for member b words + w, so that words lie side by side."""
    words = -(-mask.size // WORD_BITS)
    bits = jnp.pad(mask, (0, words * WORD_BITS - mask.size)).reshape(WORD_BITS, words).astype(jnp.uint32)
    return (bits << jnp.arange(WORD_BITS, dtype=jnp.uint32)[:, None]).sum(0, dtype=jnp.uint32)


def find_dominators(fitness: Float[Array, "n m"]) -> UInt32[Array, "words n"]:
    """Of each member, in bits as of pack_bits, who dominates it: is as good in all objectives and better in one."""
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
    """Of each member its front: 0 if none dominates it, 1 if only those of front 0 do, and so on (Deb et al. 2002).

    Once `wanted` members have one, by default all, those left have rank n.
    """
    fitness, n = sanitize_objectives(fitness), len(fitness)
    table = find_dominators(fitness)

    def has_unranked(loop: tuple[Array, Array]) -> Array:
        return tree.any_unbatched((loop[1] < n).sum() < (n if wanted is None else wanted))

    def peel(loop: tuple[Array, Array]) -> tuple[Array, Array]:
        i, rank = loop
        left = rank == n
        dominated = (table & pack_bits(left)[:, None]) != 0
        return i + 1, jnp.where(left & ~dominated.any(0), i, rank)

    return jax.lax.while_loop(has_unranked, peel, (jnp.int32(0), jnp.full(n, n, jnp.int32)))[1]


def crowding_distance(fitness: Float[Array, "n m"], rank: Int[Array, " n"]) -> Float[Array, " n"]:
    """How far a member's neighbours in its front are apart, over the front's width, summed over objectives.

    Infinite at the ends of a front (Deb et al. 2002, doi:10.1109/4235.996017, section III-B).
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
    """The exact volume that points dominate above a reference, of 2 or 3 objectives, by sweeps along the first."""
    m = fitness.shape[1]
    require(m in (2, 3), "hypervolume", f"{m} objectives", "is computed of 2 or 3")
    reference = jnp.broadcast_to(jnp.asarray(reference, fitness.dtype), (m,))
    inside = (fitness > reference).all(1, keepdims=True)  # which a NaN is not
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
    """Those that were named, or else all that a problem has."""
    return objectives or ({f"return/{i}": 1.0 for i in range(count)} if count > 1 else {"return": 1.0})
