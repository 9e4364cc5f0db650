"""The environment pools of this process, one for each host environment in use."""

import atexit
import threading
from collections.abc import Iterable
from typing import Any

from evorl.envs.host.lease_pool import LeasePool
from evorl.envs.host.leases import LEASE_COUNTER, HostFault

_POOLS: dict[Any, LeasePool] = {}
_lock = threading.Lock()


def get_pool(env: Any) -> LeasePool:
    """Return the pool of an environment; create it at the first call."""
    with _lock:
        if env not in _POOLS:
            _POOLS[env] = LeasePool(env.create_backend(), env.layout, env.restart)
        return _POOLS[env]


def find_fault() -> HostFault | None:
    """Return the fault of a pool, or None if no environment has failed."""
    return next((pool.fault for pool in list(_POOLS.values()) if pool.fault is not None), None)


def release_unused(held: Iterable[int], newest: int, oldest: int = 0) -> None:
    """Release the leases after `oldest` up to `newest` that are not in `held`, in all pools."""
    kept = {abs(lease) for lease in held}
    for pool in list(_POOLS.values()):
        pool.release_unused(kept, newest, oldest)


def newest_lease() -> int:
    """Return the newest lease number of this process."""
    return LEASE_COUNTER.newest


def release_leases(oldest: int) -> None:
    """Release all leases after `oldest`, then close the pools that have failed or have no leases left."""
    release_unused((), LEASE_COUNTER.newest, oldest)
    close_unused()


def close_unused() -> None:
    """Close the pools that have failed or have no leases."""
    with _lock:
        for env, pool in list(_POOLS.items()):
            if pool.fault is not None or not pool.active_leases:
                _POOLS.pop(env).close()


@atexit.register
def close_all() -> None:
    """Close all host environments of this process.

    States that hold leases must be reset afterwards: their environments no longer exist, so a step of them
    fails.
    """
    with _lock:
        while _POOLS:
            _POOLS.popitem()[1].close()
