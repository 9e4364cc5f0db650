"""Rounds of jitted functions, for the libraries on JAX."""

from collections.abc import Callable
from typing import Any

import jax
from side import Round


def scan_steps(step: Callable[[Any, jax.Array], tuple[Any, Any]], state: Any, count: int, work: float) -> Round:
    """Return rounds that continue from a state by `count` steps in one program.

    Args:
        step: Function of a state and a key; returns the next state and metrics.
        state: State before the first round, donated.
        count: Number of steps of a round.
        work: Units of work of a round.
    """

    def run(state: Any, key: jax.Array) -> Any:
        return jax.lax.scan(step, state, jax.random.split(key, count))[0]

    jitted, held = jax.jit(run, donate_argnums=0), [state]

    def one(i: int) -> dict[str, float]:
        held[0] = jax.block_until_ready(jitted(held[0], jax.random.key(i)))
        return {"work": work}

    return one


def call(run: Callable[[jax.Array], Any], work: float, legacy_key: bool = False) -> Round:
    """Return rounds that call a function of a key, which starts from nothing.

    Args:
        run: Function of a key; its results are only waited for.
        work: Units of work of a call.
        legacy_key: Whether the library takes only keys that are arrays of integers.
    """
    jitted, make_key = jax.jit(run), jax.random.PRNGKey if legacy_key else jax.random.key

    def one(i: int) -> dict[str, float]:
        jax.block_until_ready(jitted(make_key(i)))
        return {"work": work}

    return one
