"""Vectorized environments: episode starts, rollouts and episode statistics."""

from evorl.vector_env import hosts
from evorl.vector_env.env_batch import EnvBatch, require_level_env
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.rollout_loop import build_steps, rollout, run_episodes
from evorl.vector_env.rollout_plan import UNLIMITED, EpisodeStarts, RolloutPlan, TransitionStore
from evorl.vector_env.starts import FixedStarts, LevelStarts, ResetStarts, StartQueue
from evorl.vector_env.vector_env import Behaviour, Rollout, VectorEnv, split_evenly

__all__ = [
    "UNLIMITED",
    "Behaviour",
    "EnvBatch",
    "EnvInstance",
    "EpisodeStarts",
    "EpisodeStats",
    "FixedStarts",
    "LevelStarts",
    "ResetStarts",
    "Rollout",
    "RolloutPlan",
    "StartQueue",
    "TransitionStore",
    "VectorEnv",
    "build_steps",
    "hosts",
    "require_level_env",
    "rollout",
    "run_episodes",
    "split_evenly",
]
