"""Environments that run on the host: Gymnasium and PettingZoo (in this process or in workers), and EnvPool."""

from evorl.envs.host.env import HostEnv as HostEnv
from evorl.envs.host.envpool import EnvPool as EnvPool
from evorl.envs.host.game import HostGame as HostGame
from evorl.envs.host.pool_registry import close_all as close_all
