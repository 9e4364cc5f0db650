"""Environments that live on the host: Gymnasium's and PettingZoo's, in this process or in workers, and EnvPool's."""

from evorl.envs.host.env import HostEnv
from evorl.envs.host.envpool import EnvPool
from evorl.envs.host.game import HostGame
from evorl.envs.host.pool_registry import close_all, find_fault

__all__ = [
    "EnvPool",
    "HostEnv",
    "HostGame",
    "close_all",
    "find_fault",
]
