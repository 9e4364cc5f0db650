"""MuJoCo's C engine, as Gymnasium's tasks use it."""

from evorl.envs.mujoco.env import MuJoCo as MuJoCo
from evorl.envs.mujoco.env import MuJoCoState as MuJoCoState
