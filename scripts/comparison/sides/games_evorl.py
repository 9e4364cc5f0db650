"""PSRO and fictitious play with evorl."""

from typing import Any

import jax
from side import Round, serve

from evorl import PSRO
from evorl.envs.games import ExtensiveFormGame, Leduc
from evorl.leagues import XFP

GAME: Any = ExtensiveFormGame(Leduc())


def psro(size: int) -> Round:
    """Return rounds of PSRO with exact best responses; each is one seed."""
    return solve(PSRO(GAME, capacity=size + 1), size)


def xfp(size: int) -> Round:
    return solve(XFP(GAME), 1000)


def solve(workflow: Any, iterations: int) -> Round:
    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, iterations))[1]["nash_conv"][-1]

    return lambda i: {"work": iterations, "score": float(run(jax.random.key(i)))}


if __name__ == "__main__":
    serve({"psro": psro, "xfp": xfp}, "jax")
