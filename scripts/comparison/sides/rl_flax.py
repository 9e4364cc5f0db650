"""Updates of TD3 written by hand on Flax and Optax."""

from jax_rounds import run_program
from peers_updates import plain_td3
from side import Round, serve


def td3_updates(size: int) -> Round:
    return run_program(plain_td3(size))


if __name__ == "__main__":
    serve({"td3_updates": td3_updates}, "flax", "optax", "jax")
