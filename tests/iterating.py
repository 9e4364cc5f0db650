"""Iterations of a workflow of parts, of which tests look at every part."""

import jax

from evorl.workflows.base import bind_to_state


def iterations(workflow, count):
    """Of some iterations the state before, the plan, what it carries, what was played, the metrics, the state after."""
    state, history = workflow.init(jax.random.key(0)), []

    @jax.jit
    def iterate(state, key):
        bound = bind_to_state(workflow, state)
        plan, carry = bound.plan(state, key)
        _, seen = bound.rollout(state, plan, key)
        after, metrics = bound.learn_from(state, carry, seen, key)
        return after, plan, carry, seen, metrics

    for i in range(count):
        before = state
        state, *parts = iterate(state, jax.random.key(i))
        history.append((before, *parts, state))
    return history
