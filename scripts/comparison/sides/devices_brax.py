"""PPO of Brax on one device of a CPU, which uses all cores, and on two."""

from functools import partial

import devices_count
from brax_brax import ppo
from side import serve

if __name__ == "__main__":
    serve({f"ppo_ant_{devices_count.COUNT}": partial(ppo, "ant")}, "jax", "brax")
