"""MuJoCo's C engine, with Gymnasium's tasks."""

from evorl.envs.mujoco.env import MuJoCo as MuJoCo
from evorl.envs.mujoco.env import MuJoCoState as MuJoCoState
