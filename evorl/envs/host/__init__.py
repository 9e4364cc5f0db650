"""Environments that live on the host: Gymnasium's, in this process or in workers."""

from evorl.envs.host.env import HostEnv

__all__ = ["HostEnv"]
