"""Iterations of a workflow of parts, of which tests look at every part."""

import jax


def iterations(workflow, count, hyperparams=None):
    """Of some iterations the state before, the plan, what it carries, what was played, the metrics, the state after."""
    given = workflow.hyperparams() if hyperparams is None else hyperparams
    state, history = workflow.init(jax.random.key(0), given), []

    @jax.jit
    def iterate(state, key):
        plan, carry = workflow.plan(state, key)
        _, seen = workflow.rollout(state, plan, key)
        after, metrics = workflow.learn_from(state, carry, seen, key)
        return after, plan, carry, seen, metrics

    for i in range(count):
        before = state
        state, *parts = iterate(state, jax.random.key(i))
        history.append((before, *parts, state))
    return history
