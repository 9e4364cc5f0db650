"""Functions that adapters of MJX-Warp share: calls for all worlds at once, and the limits that Warp reports."""

from collections.abc import Callable
from typing import Any

import jax

from evorl import tree

IMPLS = ("jax", "warp")  # implementations of MJX
CONTACT_OVERFLOWS = 1 << 2 | 1 << 3 | 1 << 4  # bits of MuJoCo Warp's OverflowType: BROADPHASE, NARROWPHASE, CCD
SOLVER_LIMITS = 1 << 9 | 1 << 10  # bits of OverflowType: ITERATIONS, LS_ITERATIONS


def silence_solver_limits(model: Any) -> Any:
    """Return a model of MJX-Warp that prints nothing when the solver reaches its limits, which is no error."""
    return model.tree_replace({"opt._impl.warn_overflow": model.opt._impl.warn_overflow & ~SOLVER_LIMITS})


def batch_worlds(run: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of n worlds into a function of one world, whose vmapped calls are one call of the former.

    Args:
        run: Function of n and arguments with leaves [n, ...], which returns leaves [n, ...].

    Returns:
        A function of the arguments of one world, without n.
    """

    @jax.custom_batching.custom_vmap
    def call(*given: Any) -> Any:
        return run(len(jax.tree.leaves(given)[0]), *given)

    @call.def_vmap
    def _(axis_size: int, in_batched: Any, *given: Any) -> tuple[Any, Any]:
        spread = lambda x, batched: x if batched else tree.broadcast(x, axis_size)  # noqa: E731
        given = jax.tree.map(spread, given, tuple(in_batched))
        merged = jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), given)
        found = jax.tree.map(lambda x: x.reshape(axis_size, len(x) // axis_size, *x.shape[1:]), call(*merged))
        return found, jax.tree.map(lambda _: True, found)

    def call_one(*given: Any) -> Any:
        return jax.tree.map(lambda x: x[0], call(*jax.tree.map(lambda x: x[None], given)))

    return call_one
