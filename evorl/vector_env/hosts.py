"""What a state and params say of environments on the host: whose slots are which, which act, and which begin anew."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from evorl import tree
from evorl.errors import require
from evorl.types import HostParams, HostState, Key


def params(env_params: Any) -> HostParams | None:
    """Those of the environment on the host that there is in an environment, or None."""
    return next((x for x in _nodes(env_params, HostParams) if isinstance(x, HostParams)), None)


@dataclass(frozen=True)
class Asked:
    """What is asked of slots on the host, leaves [n, ...]."""

    acts: Any
    lease: Any = 0
    leaves: Any = False
    goes_on: Any = False
    seed: Any = (0, 0)
    begun: Any = ()
    share: Any = ()

    def of(self, env_params: Any) -> Any:
        """The params of n slots that say so, leaves [n, ...]."""
        n = self.acts.shape[0]
        spread = lambda x, *shape: jnp.broadcast_to(jnp.asarray(x), (n, *shape))  # noqa: E731

        def one(x: Any) -> Any:
            if not isinstance(x, HostParams):
                return tree.broadcast(x, n)
            seed = spread(jnp.asarray(self.seed, jnp.uint32), 2)
            share = self.share if isinstance(self.share, tuple) else spread(self.share)
            said = spread(self.lease), spread(self.leaves), spread(self.goes_on), seed, self.begun, share
            return HostParams(self.acts, *said, x.workers, x.batch)

        return jax.tree.map(one, env_params, is_leaf=lambda x: isinstance(x, HostParams))


def where(acts: Any, env_params: Any) -> Any:
    """The params of one environment, of which one on the host is touched only where so, [].

    For wrappers that take several steps in one; raises OptionError where a step may have no answer yet.
    """
    batch = 0 if (host := params(env_params)) is None else host.batch
    require(not batch, "env.batch", batch, "must be 0 where a wrapper, such as Repeat, takes several steps in one")
    is_one = lambda x: isinstance(x, HostParams)  # noqa: E731
    return jax.tree.map(lambda x: replace(x, acts=x.acts & acts) if is_one(x) else x, env_params, is_leaf=is_one)


def seeds(keys: Key) -> UInt32[Array, "*n 2"]:
    """The seeds of episodes for keys."""
    return jax.random.key_data(keys).astype(jnp.uint32)[..., jnp.array([0, -1])]


def the(env_state: Any) -> HostState:
    """The one in the states of slots."""
    return next(x for x in _nodes(env_state, HostState) if isinstance(x, HostState))


def leases(env_state: Any) -> Int[Array, " n"]:
    """Of the states of slots the leases, as a state holds them."""
    return the(env_state).lease


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
    """state with what keeper, a state of the same slots, holds of the host, all of which is to begin anew."""
    return anew(kept(state, keeper))


def kept(state: Any, keeper: Any) -> Any:
    """state with what keeper, a state of the same slots, holds of the host."""
    mine = iter(x for x in _nodes(keeper, HostState) if isinstance(x, HostState))
    is_one = lambda x: isinstance(x, HostState)  # noqa: E731
    return jax.tree.map(lambda x: next(mine) if is_one(x) else x, state, is_leaf=is_one)


def _each(state: Any, change: Any) -> Any:
    is_one = lambda x: isinstance(x, HostState)  # noqa: E731
    return jax.tree.map(lambda x: replace(x, lease=change(x.lease)) if is_one(x) else x, state, is_leaf=is_one)


def _nodes(values: Any, kind: type) -> list[Any]:
    return jax.tree.leaves(values, is_leaf=lambda x: isinstance(x, kind))
