"""Gymnasium's MuJoCo tasks, on MuJoCo's C engine and on MJX."""

from evorl.envs.mujoco.env import MuJoCo as MuJoCo
from evorl.envs.mujoco.env import MuJoCoState as MuJoCoState
from evorl.envs.mujoco.mjx import MJX as MJX
from evorl.envs.mujoco.mjx import MJXState as MJXState
