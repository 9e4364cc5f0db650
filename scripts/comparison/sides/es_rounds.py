"""Rounds of searches that end at a target, in JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from es_functions import BBOB_RANGE, BBOB_TARGET, START, count_members, limit_evaluations
from side import Round

Search = Callable[[Any, Any], tuple[Any, Any]]  # from a key and a start: number of evaluations, best last value


def search(init: Callable[..., Any], generation: Callable[..., Any], size: int, target: float) -> Search:
    """Return a program that searches until a generation has a value below a target.

    Args:
        init: Function of a key and a start; returns the first state.
        generation: Function of a key and a state; returns the next state and the values of the individuals.
        size: Number of parameters.
        target: Value to reach.
    """

    @jax.jit
    def run(key: Any, start: Any) -> Any:
        def step(carry: Any) -> Any:
            state, taken, _ = carry
            state, values = generation(jax.random.fold_in(key, taken), state)
            return state, taken + count_members(size), values.min()

        def is_open(carry: Any) -> Any:
            return ~(carry[2] < target) & (carry[1] < limit_evaluations(size))

        return jax.lax.while_loop(is_open, step, (init(key, start), jnp.int32(0), jnp.float32(jnp.inf)))[1:]

    return run


def search_one(run: Search, size: int) -> Round:
    """Return rounds that search from START; the score is the last value."""

    def one(i: int) -> dict[str, float]:
        taken, best = run(jax.random.key(i), jnp.full(size, START))
        return {"work": int(taken), "score": float(best)}

    return one


def search_all(searches: Sequence[Search], size: int) -> Round:
    """Return rounds that run all searches from one point; the score is how many have found BBOB_TARGET."""

    def one(i: int) -> dict[str, float]:
        key, key_start = jax.random.split(jax.random.key(i))
        start = jax.random.uniform(key_start, (size,), minval=-BBOB_RANGE, maxval=BBOB_RANGE)
        found = [run(key, start) for run in searches]
        return {"work": sum(int(taken) for taken, _ in found), "score": sum(float(x) < BBOB_TARGET for _, x in found)}

    return one
