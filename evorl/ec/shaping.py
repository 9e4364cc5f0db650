"""Ranking and shaping of the fitness of a population.

Fitness is maximized. NaN counts as the worst fitness.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.errors import unknown_name_error
from evorl.types import Key

Shaping: TypeAlias = Callable[[Array], Array]  # fitness [n] -> utility [n]


def sanitize_fitness(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the fitness with NaN replaced by -inf."""
    return jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)


def argsort_best_first(fitness: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the indices of the individuals, sorted from the highest to the lowest fitness."""
    return jnp.argsort(-sanitize_fitness(fitness))


def count_elites(fitness: Float[Array, " n"], members: Int[Array, " k"]) -> Int[Array, ""]:
    """Count how many of k given individuals are among the k fittest of the population."""
    return jnp.isin(members, argsort_best_first(fitness)[: len(members)]).sum()


def compete_in_pairs(key: Key, fitness: Float[Array, " n"]) -> tuple[Int[Array, " half"], Int[Array, " half"]]:
    """Return the winners and the losers of n / 2 random pairs, as indices; n must be even."""
    fitness = sanitize_fitness(fitness)
    first, second = jnp.split(jax.random.uniform(key, fitness.shape).argsort(), 2)
    wins = fitness[first] > fitness[second]
    return jnp.where(wins, first, second), jnp.where(wins, second, first)


def compute_ranks(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the ranks from 0 (worst) to n - 1 (best); individuals with equal fitness share their mean rank."""
    fitness = sanitize_fitness(fitness)
    ordered = jnp.sort(fitness)
    below, to = jnp.searchsorted(ordered, fitness, side="left"), jnp.searchsorted(ordered, fitness, side="right")
    return (below + to - 1) / 2


def replace_nonfinite(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Replace non-finite fitness by the lowest finite fitness, or by 0 if none is finite."""
    sound = jnp.isfinite(fitness)
    worst = jnp.where(sound, fitness, jnp.inf).min()
    return jnp.where(sound, fitness, jnp.where(jnp.isfinite(worst), worst, 0.0))


def identity(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the fitness itself, with non-finite values replaced by the lowest finite one."""
    return replace_nonfinite(fitness)


def center_ranks(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return centered ranks, evenly spaced from -1/2 (worst) to 1/2 (best).

    Source: Salimans et al. 2017, arXiv:1703.03864, section 2.
    """
    return compute_ranks(fitness) / max(len(fitness) - 1, 1) - 0.5


def z_score(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the fitness normalized to mean 0 and standard deviation 1."""
    fitness = replace_nonfinite(fitness)
    return (fitness - fitness.mean()) / (fitness.std() + 1e-8)


def nes_utilities(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return n times the utilities of natural evolution strategies (NES).

    The utilities are max(0, log(n / 2 + 1) - log(rank)), with rank 1 for the best individual. They are
    normalized to sum to 1, and 1 / n is subtracted.

    Source: Wierstra et al. 2014, JMLR 15, section 3.1.
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
    """Raise OptionError if the shaping is a string, but not one of the names in SHAPINGS."""
    if isinstance(shaping, str) and shaping not in SHAPINGS:
        raise unknown_name_error("shaping", shaping, SHAPINGS)


def apply_shaping(shaping: str | Shaping, fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the utilities of a population by a shaping function, given as a function or by name."""
    return (SHAPINGS[shaping] if isinstance(shaping, str) else shaping)(fitness)


def recombination_weights(num_elites: int, offset: float) -> Float[Array, " elites"]:
    """Return the weights log(offset + n) - log(i) of the i-th best of n elites, i from 1, normalized to sum to 1."""
    weights = jnp.log(offset + num_elites) - jnp.log(jnp.arange(1.0, 1 + num_elites))
    return weights / weights.sum()
