"""Environments that live on the host: Gymnasium's, in this process or in workers."""

from evorl.envs.host.env import HostEnv
from evorl.envs.host.pools import close, fault

__all__ = ["HostEnv", "close", "fault"]
