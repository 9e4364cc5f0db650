"""Access to the parts of states and parameters that belong to host environments, such as leases and requests."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from evorl import tree
from evorl.errors import require
from evorl.types import HostParams, HostState, Key


def find_host_params(env_params: Any) -> HostParams | None:
    """Return the parameters of the host environment that an environment contains, or None."""
    return next(iter(_find(HostParams, env_params)), None)


def has_late_answers(env_params: Any) -> bool:
    """Return whether a step may have no answer yet, since it waits for only some of the environments."""
    host = find_host_params(env_params)
    return host is not None and host.batch > 0


def count_waited(env_params: Any, num_envs: int, total_envs: int) -> int:
    """Return for how many of this device's num_envs environments, of total_envs, a step waits; 0 for all."""
    host = find_host_params(env_params)
    return 0 if host is None else -(-min(host.batch, total_envs) * num_envs // total_envs)


@dataclass(frozen=True)
class HostRequest:
    """Request to n environments on the host, leaves [n, ...]."""

    active: Bool[Array, " n"]
    lease: Int[Array, " n"] | int = 0
    releases: Bool[Array, "*n"] | bool = False
    autoreset: Bool[Array, " n"] | bool = False
    seed: UInt32[Array, "n 2"] | tuple[int, int] = (0, 0)
    reset_state: HostState | None = None
    wait_fraction: float | None = None

    def to_env_params(self, env_params: Any) -> Any:
        """Return the parameters of n environments that carry this request, leaves [n, ...]."""
        n = self.active.shape[0]
        spread = lambda x, *shape: jnp.broadcast_to(jnp.asarray(x), (n, *shape))  # noqa: E731

        def expand_leaf(x: Any) -> Any:
            if not isinstance(x, HostParams):
                return tree.broadcast(x, n)
            seed = spread(jnp.asarray(self.seed, jnp.uint32), 2)
            share = self.wait_fraction if self.wait_fraction is None else spread(self.wait_fraction)
            said = spread(self.lease), spread(self.releases), spread(self.autoreset), seed, self.reset_state, share
            return HostParams(self.active, *said, x.workers, x.batch)

        return jax.tree.map(expand_leaf, env_params, is_leaf=lambda x: isinstance(x, HostParams))


def mask_host_params(acts: Any, env_params: Any) -> Any:
    """Return the parameters of one environment, whose host environment acts only if `acts` [] is true.

    Wrappers that take several steps in one use it. It raises OptionError if a step may have no answer yet.
    """
    batch = 0 if (host := find_host_params(env_params)) is None else host.batch
    require(
        not batch, "env.batch", batch, "must be 0 with a wrapper that takes several steps in one, such as ActionRepeat"
    )
    return _map(HostParams, lambda x: replace(x, active=x.active & acts), env_params)


def seeds_from_keys(keys: Key) -> UInt32[Array, "*n 2"]:
    """Return the seeds of episodes for their keys."""
    return jax.random.key_data(keys).astype(jnp.uint32)[..., jnp.array([0, -1])]


def find_host_state(env_state: Any) -> HostState:
    """Return the host state within the states of environments."""
    return _find(HostState, env_state)[0]


def get_leases(env_state: Any) -> Int[Array, " n"]:
    """Return the leases within the states of environments, [n]."""
    return find_host_state(env_state).lease


def collect_leases(state: Any) -> list[Any]:
    """Return all leases within a state, of any shape."""
    return [x.lease for x in _find(HostState, state)]


def mark_for_reset(state: Any) -> Any:
    """Mark all host environments of a state for reset; they keep their leases."""
    return _map_leases(state, lambda lease: -jnp.abs(lease))


def clear_leases(state: Any) -> Any:
    """Clear all leases of a state, so that its host environments restart with other leases."""
    return _map_leases(state, jnp.zeros_like)


def copy_marked_for_reset(state: Any, keeper: Any) -> Any:
    """Return a state with the host states of `keeper`, a state of the same environments, marked for reset."""
    return mark_for_reset(copy_host_states(state, keeper))


def copy_host_states(state: Any, keeper: Any) -> Any:
    """Return a state with the host states of `keeper`, a state of the same environments."""
    mine = iter(_find(HostState, keeper))
    return _map(HostState, lambda _: next(mine), state)


def _map_leases(state: Any, change: Callable[[Any], Any]) -> Any:
    return _map(HostState, lambda x: replace(x, lease=change(x.lease)), state)


def _find(kind: type, values: Any) -> list[Any]:
    """Return the instances of a class in a pytree."""
    leaves = jax.tree.leaves(values, is_leaf=lambda x: isinstance(x, kind))
    return [x for x in leaves if isinstance(x, kind)]


def _map(kind: type, change: Callable[[Any], Any], values: Any) -> Any:
    """Apply a function to the instances of a class in a pytree."""
    is_kind = lambda x: isinstance(x, kind)  # noqa: E731
    return jax.tree.map(lambda x: change(x) if is_kind(x) else x, values, is_leaf=is_kind)
