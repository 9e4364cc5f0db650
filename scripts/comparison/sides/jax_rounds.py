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


def call(run: Callable[[jax.Array], Any], work: float, legacy_key: bool = False, times: int = 1) -> Round:
    """Return rounds of calls of a function of a key, which starts from nothing.

    Args:
        run: Function of a key; its results are only waited for.
        work: Units of work of a call.
        legacy_key: Whether the library takes only keys that are arrays of integers.
        times: Number of calls in a round.
    """
    jitted, make_key = jax.jit(run), jax.random.PRNGKey if legacy_key else jax.random.key

    def one(i: int) -> dict[str, float]:
        jax.block_until_ready([jitted(make_key(i * times + j)) for j in range(times)])
        return {"work": times * work}

    return one


def call_steps(step: Callable[[Any, jax.Array], Any], state: Any, count: int, work: float) -> Round:
    """Return rounds that continue from a state by `count` calls of a jitted step.

    Args:
        step: Jitted function of a state and a key; returns the next state.
        state: State before the first round.
        count: Number of calls in a round.
        work: Units of work of a round.
    """
    held = [state]

    def one(i: int) -> dict[str, float]:
        for key in jax.random.split(jax.random.key(i), count):
            held[0] = step(held[0], key)
        jax.block_until_ready(held[0])
        return {"work": work}

    return one


def score(run: Callable[[jax.Array], jax.Array], work: float) -> Round:
    """Return rounds that call a function of a key, which starts from nothing and returns the score of the round.

    Args:
        run: Function of a key.
        work: Units of work of a call.
    """
    jitted = jax.jit(run)

    def one(i: int) -> dict[str, float]:
        return {"work": work, "score": float(jitted(jax.random.key(i)))}

    return one


def run_program(program: Any) -> Round:
    """Return rounds that run a Program of peers_timing.py, which is compiled in the first round."""

    def one(i: int) -> dict[str, float]:
        if i == 0:
            program.compile()
        program.run()
        return {"work": program.work}

    return one
