"""The pools of this process, one for each environment that something has a lease of."""

import atexit
import threading
from collections.abc import Iterable
from typing import Any

from evorl.envs.host.lease_pool import LeasePool
from evorl.envs.host.leases import LEASE_COUNTER, HostFault

_POOLS: dict[Any, LeasePool] = {}
_lock = threading.Lock()


def get_pool(env: Any) -> LeasePool:
    """The pool of an environment."""
    with _lock:
        if env not in _POOLS:
            _POOLS[env] = LeasePool(env.create_backend(), env.layout, env.restart)
        return _POOLS[env]


def find_fault() -> HostFault | None:
    """What has gone wrong, where anything has: the environment and the rest are as they were before."""
    return next((pool.fault for pool in list(_POOLS.values()) if pool.fault is not None), None)


def release_unused(held: Iterable[int], newest: int, oldest: int = 0) -> None:
    """Gives back the leases after oldest up to newest that are not held."""
    kept = {abs(lease) for lease in held}
    for pool in list(_POOLS.values()):
        pool.release_unused(kept, newest, oldest)


def newest_lease() -> int:
    """The newest lease there is."""
    return LEASE_COUNTER.newest


def release_leases(oldest: int) -> None:
    """Gives back all leases after oldest, and closes what nothing has leases of, or has failed."""
    release_unused((), LEASE_COUNTER.newest, oldest)
    close_unused()


def close_unused() -> None:
    """Closes the environments of pools that have failed, or of which nothing has a lease."""
    with _lock:
        for env, pool in list(_POOLS.items()):
            if pool.fault is not None or not pool.active_leases:
                _POOLS.pop(env).close()


@atexit.register
def close_all() -> None:
    """Closes all environments; states that have leases begin anew."""
    with _lock:
        while _POOLS:
            _POOLS.popitem()[1].close()
