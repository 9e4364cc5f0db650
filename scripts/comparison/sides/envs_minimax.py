"""Random actions in the maze of minimax, and its curricula."""

from functools import partial

from envs_sizes import CURRICULA, ITERATIONS, STEPS
from jax_rounds import call
from peers_minimax import random_play
from peers_minimax_ued import CASES, begin, iterate
from side import Round, serve


def maze(size: int) -> Round:
    return call(random_play(size, STEPS[size]), size * STEPS[size], legacy_key=True)


def curriculum(case: str, size: int) -> Round:
    """Iterations of PPO on new levels, or of PLR that plays only new levels or only replays."""
    del size
    runner, state = begin(*CASES[case])
    held = [state]

    def one(i: int) -> dict[str, float]:
        for _ in range(ITERATIONS):
            held[0], _ = iterate(runner, held[0])
        return {"work": ITERATIONS}

    return one


if __name__ == "__main__":
    cases = zip(CURRICULA, CASES, strict=False)
    serve({"maze": maze, **{name: partial(curriculum, case) for name, case in cases}}, "minimax-lib", "jax")
