"""Numbers that change with the env steps taken."""

from typing import Any

import jax.numpy as jnp

from evorl.parts import Number


def linear_schedule(start: Number, end: Number, steps: Any, over: Number) -> Any:
    """From start to end over so many steps, start all the time where over is infinite."""
    return start + (end - start) * jnp.minimum(steps / over, 1.0)


def cosine_schedule(start: Number, end: Number, steps: Any, over: Number) -> Any:
    """From start to end over so many steps along half a cosine, start all the time where over is infinite."""
    return end + (start - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(steps / over, 1.0))) / 2
