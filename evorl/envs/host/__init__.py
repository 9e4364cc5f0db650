"""Environments that live on the host: Gymnasium's, in this process or in workers, and EnvPool's."""

from evorl.envs.host.env import HostEnv
from evorl.envs.host.envpool import EnvPool
from evorl.envs.host.pools import close, fault

__all__ = ["EnvPool", "HostEnv", "close", "fault"]
