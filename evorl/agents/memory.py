"""Whether agents remember."""

import jax

from evorl.types import Actor


def is_recurrent(agent: Actor) -> bool:
    """Whether an agent has a memory."""
    return bool(jax.tree.leaves(jax.eval_shape(agent.initial_memory)))
