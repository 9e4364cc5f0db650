"""What a state and params say of environments on the host: whose slots are which, which act, and which begin anew."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.types import HostParams, HostState


def params(env_params: Any) -> HostParams | None:
    """Those of the environment on the host that there is in an environment, or None."""
    return next((x for x in _nodes(env_params, HostParams) if isinstance(x, HostParams)), None)


def asked(
    env_params: Any,
    acts: Bool[Array, " n"],
    lease: Int[Array, " n"] | None = None,
    leaves: bool | Bool[Array, ""] = False,
) -> Any:
    """The params of n slots, leaves [n, ...], which say what is asked of each."""
    n = acts.shape[0]
    lease = jnp.zeros(n, jnp.int32) if lease is None else lease

    def one(x: Any) -> Any:
        if not isinstance(x, HostParams):
            return tree.broadcast(x, n)
        return HostParams(acts, lease, jnp.broadcast_to(jnp.asarray(leaves), n), x.workers)

    return jax.tree.map(one, env_params, is_leaf=lambda x: isinstance(x, HostParams))


def leases(env_state: Any) -> Any:
    """Of the states of slots the leases, as a state holds them."""
    return next(x.lease for x in _nodes(env_state, HostState) if isinstance(x, HostState))


def held(state: Any) -> list[Any]:
    """All leases in a state, whatever their axes."""
    return [x.lease for x in _nodes(state, HostState) if isinstance(x, HostState)]


def anew(state: Any) -> Any:
    """state, whose environments on the host keep their leases and are to begin anew."""
    return _each(state, lambda lease: -jnp.abs(lease))


def without(state: Any) -> Any:
    """state, in which no environment on the host has a lease: all begin anew with others."""
    return _each(state, jnp.zeros_like)


def own(state: Any, keeper: Any) -> Any:
    """state with the leases and counts of keeper, a state of the same slots, which are to begin anew."""
    mine = iter(x for x in _nodes(keeper, HostState) if isinstance(x, HostState))
    is_one = lambda x: isinstance(x, HostState)  # noqa: E731
    return anew(jax.tree.map(lambda x: next(mine) if is_one(x) else x, state, is_leaf=is_one))


def _each(state: Any, change: Any) -> Any:
    is_one = lambda x: isinstance(x, HostState)  # noqa: E731
    return jax.tree.map(lambda x: x.replace(lease=change(x.lease)) if is_one(x) else x, state, is_leaf=is_one)


def _nodes(values: Any, kind: type) -> list[Any]:
    return jax.tree.leaves(values, is_leaf=lambda x: isinstance(x, kind))
