"""PSRO and fictitious play with evorl."""

from typing import Any

from evorl_training import train_from_scratch
from jax_rounds import score
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
    return score(lambda key: train_from_scratch(workflow, key, iterations)[1]["nash_conv"][-1], iterations)


if __name__ == "__main__":
    serve({"psro": psro, "xfp": xfp}, "jax")
