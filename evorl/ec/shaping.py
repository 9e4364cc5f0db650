"""From the fitness of a population to who wins and how much each member counts. NaN counts as the worst."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.errors import unknown_name_error
from evorl.types import Key

Shaping: TypeAlias = Callable[[Array], Array]  # fitness [n] -> utility [n]


def sanitize_fitness(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Fitness with -inf in place of NaN."""
    return jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)


def argsort_best_first(fitness: Float[Array, " n"]) -> Int[Array, " n"]:
    """Members from the fittest to the least fit."""
    return jnp.argsort(-sanitize_fitness(fitness))


def count_elites(fitness: Float[Array, " n"], members: Int[Array, " k"]) -> Int[Array, ""]:
    """Count those of k members that are among the k fittest."""
    return jnp.isin(members, argsort_best_first(fitness)[: len(members)]).sum()


def compete_in_pairs(key: Key, fitness: Float[Array, " n"]) -> tuple[Int[Array, " half"], Int[Array, " half"]]:
    """Random pairs of n members, n even: the winner of each and the loser."""
    fitness = sanitize_fitness(fitness)
    first, second = jnp.split(jax.random.uniform(key, fitness.shape).argsort(), 2)
    wins = fitness[first] > fitness[second]
    return jnp.where(wins, first, second), jnp.where(wins, second, first)


def compute_ranks(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """How many are less fit; those that are equally fit share the mean of their places."""
    fitness = sanitize_fitness(fitness)
    ordered = jnp.sort(fitness)
    below, to = jnp.searchsorted(ordered, fitness, side="left"), jnp.searchsorted(ordered, fitness, side="right")
    return (below + to - 1) / 2


def replace_nonfinite(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Fitness with the worst finite one, or 0 where there is none, in place of what is not finite."""
    sound = jnp.isfinite(fitness)
    worst = jnp.where(sound, fitness, jnp.inf).min()
    return jnp.where(sound, fitness, jnp.where(jnp.isfinite(worst), worst, 0.0))


def identity(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """The fitness itself."""
    return replace_nonfinite(fitness)


def center_ranks(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Evenly from -1/2, the worst, to 1/2 (Salimans et al. 2017, arXiv:1703.03864, section 2)."""
    return compute_ranks(fitness) / max(len(fitness) - 1, 1) - 0.5


def z_score(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Standard deviations from the mean."""
    fitness = replace_nonfinite(fitness)
    return (fitness - fitness.mean()) / (fitness.std() + 1e-8)


def nes_utilities(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """n times the utilities of natural evolution strategies (Wierstra et al. 2014, JMLR 15, section 3.1).

    max(0, log(n / 2 + 1) - log(place)), with places from 1 for the best, normalized to sum to 1, minus 1 / n.
    """
    n = len(fitness)
    utility = jnp.maximum(0.0, jnp.log(n / 2 + 1) - jnp.log(n - compute_ranks(fitness)))
    return n * utility / utility.sum() - 1


SHAPINGS: dict[str, Shaping] = {
    "centered_rank": center_ranks,
    "z_score": z_score,
    "weights": nes_utilities,
    "identity": identity,
}


def check_shaping(shaping: str | Shaping) -> None:
    """Raises OptionError where a name is not that of a shaping."""
    if isinstance(shaping, str) and shaping not in SHAPINGS:
        raise unknown_name_error("shaping", shaping, SHAPINGS)


def apply_shaping(shaping: str | Shaping, fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """The utilities by a function or by the name of one."""
    return (SHAPINGS[shaping] if isinstance(shaping, str) else shaping)(fitness)


def recombination_weights(num_elites: int, offset: float) -> Float[Array, " elites"]:
    """log(offset + n) - log(i) for the i-th best of n elites, i from 1, normalized to sum to 1."""
    weights = jnp.log(offset + num_elites) - jnp.log(jnp.arange(1.0, 1 + num_elites))
    return weights / weights.sum()
