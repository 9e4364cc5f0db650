"""A stretch of the life of a population: steps of all members, and then evaluations of all."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from evorl import metrics as metrics_of
from evorl import tree
from evorl.errors import OptionError
from evorl.types import Key, Metrics, Population, State


def live(
    population: Population, members: State, key: Key, steps: Int[Array, ""], evaluations: Int[Array, ""]
) -> tuple[State, Metrics, Metrics]:
    """The members after so many steps, the metrics of these, and those of the evaluations together, leaves [n, ...].

    Raises OptionError where an evaluation has no "return". It is one loop, so that one program holds physics once; of
    vmapped copies all must have the same steps and evaluations.
    """

    @jax.jit
    def advance(members: State, i: Array) -> tuple[State, Metrics, Metrics]:
        members, step, evaluation = population.advance(members, jax.random.fold_in(key, i), i >= steps)
        return members, metrics_of.weighted(step), metrics_of.weighted(evaluation)

    def add(totals: Metrics, new: Metrics, counts: Array) -> Metrics:
        return jax.tree.map(lambda total, x: total + jnp.where(counts, x, 0), totals, new)

    def once(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        i, members, trained, evaluated = loop
        members, step, evaluation = advance(members, i)
        return i + 1, members, add(trained, step, i < steps), add(evaluated, evaluation, i >= steps)

    none = tree.zeros(jax.eval_shape(advance, members, jnp.int32(0))[1:])
    if "return" not in none[1]:
        name = type(population.inner).__name__
        raise OptionError(f'{name}: its evaluation has no "return", by which members are compared')
    _, members, trained, evaluated = jax.lax.while_loop(
        lambda loop: tree.anywhere(loop[0] < steps + evaluations), once, (jnp.int32(0), members, *none)
    )
    return members, metrics_of.averaged(trained, jnp.maximum(steps, 1)), metrics_of.averaged(evaluated, evaluations)
