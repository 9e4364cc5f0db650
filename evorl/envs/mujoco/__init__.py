"""MuJoCo's C engine, as Gymnasium's tasks use it."""

from evorl.envs.mujoco.env import MuJoCo, MuJoCoState

__all__ = ["MuJoCo", "MuJoCoState"]
