"""Trainings of evorl from scratch, for the sides of several topics."""

from typing import Any

import jax


def train_from_scratch(workflow: Any, key: jax.Array, iterations: int) -> tuple[Any, Any]:
    """Return the last state, and the metrics of all iterations, leaves [iterations, ...]."""
    key_init, key_steps = jax.random.split(key)
    return jax.lax.scan(workflow.step, workflow.init(key_init), jax.random.split(key_steps, iterations))
