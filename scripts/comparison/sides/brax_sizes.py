"""Sizes of the comparison with Brax's trainers."""

PHYSICS = {"inverted_pendulum": "generalized", "hopper": "spring", "ant": "spring"}
ITERATIONS = {"inverted_pendulum": 20, "hopper": 20, "ant": 5}  # of PPO in a round, with 64 environments
HIDDEN, UNROLL, MINIBATCHES, EPOCHS = (256, 256), 16, 8, 4
SAC_UPDATES, SAC_BATCH, SAC_ITERATIONS = 64, 256, 10


def count_iterations(name: str, envs: int) -> int:
    """Return the iterations of PPO in a round."""
    return max(ITERATIONS[name] * 64 // envs, 2)
