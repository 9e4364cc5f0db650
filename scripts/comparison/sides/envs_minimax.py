"""Random actions in the maze of minimax."""

from envs_sizes import STEPS
from jax_rounds import call
from peers_minimax import random_play
from side import Round, serve

if __name__ == "__main__":

    def maze(size: int) -> Round:
        return call(random_play(size, STEPS[size]), size * STEPS[size], legacy_key=True)

    serve({"maze": maze}, "minimax-lib", "jax")
