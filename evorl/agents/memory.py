"""Test for recurrent agents."""

import jax

from evorl.types import Actor


def is_recurrent(agent: Actor) -> bool:
    """Return whether an agent has a recurrent state."""
    return bool(jax.tree.leaves(jax.eval_shape(agent.initial_memory)))
