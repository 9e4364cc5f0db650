"""Sizes of the comparison of environments."""

STEPS = {1: 20_000, 32: 2_000, 256: 500, 1024: 250}  # of each maze in a round, by the number of mazes
PARTICLE_STEPS = 100  # of each environment in a call
PARTICLES = ("spread", "tag", "adversary")
CURRICULA = ("domain_randomization", "plr_new_levels", "plr_replays")
ITERATIONS = 2  # of a curriculum in a round


def count_calls(envs: int) -> int:
    """Return the calls of a particle environment in a round."""
    return 2**14 // envs
