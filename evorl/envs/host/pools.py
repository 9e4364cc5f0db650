"""The pools of this process, one for each environment that something has a lease of."""

import atexit
import threading
from collections.abc import Iterable
from typing import Any

from evorl.envs.host.leases import LEASES, Fault
from evorl.envs.host.pool import Pool

_POOLS: dict[Any, Pool] = {}
_lock = threading.Lock()


def of(env: Any) -> Pool:
    """The pool of an environment."""
    with _lock:
        if env not in _POOLS:
            _POOLS[env] = Pool(env.places(), env.layout, env.restart)
        return _POOLS[env]


def fault() -> Fault | None:
    """What has gone wrong, where anything has: the environment and the rest are as they were before."""
    return next((pool.fault for pool in list(_POOLS.values()) if pool.fault is not None), None)


def sweep(held: Iterable[int], newest: int, oldest: int = 0) -> None:
    """Gives back the leases after oldest up to newest that are not held."""
    kept = {abs(lease) for lease in held}
    for pool in list(_POOLS.values()):
        pool.sweep(kept, newest, oldest)


def newest() -> int:
    """The newest lease there is."""
    return LEASES.newest


def give_back(oldest: int) -> None:
    """Gives back all leases after oldest, and closes what nothing has leases of, or has failed."""
    sweep((), LEASES.newest, oldest)
    close_unused()


def close_unused() -> None:
    """Closes the environments of pools that have failed, or of which nothing has a lease."""
    with _lock:
        for env, pool in list(_POOLS.items()):
            if pool.fault is not None or not pool.leased:
                _POOLS.pop(env).close()


@atexit.register
def close() -> None:
    """Closes all environments; states that have leases begin anew."""
    with _lock:
        while _POOLS:
            _POOLS.popitem()[1].close()
