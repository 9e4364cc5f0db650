"""Many environments at once: where episodes begin, the one play, and what the slots did."""

from evorl.vector_env import hosts
from evorl.vector_env.episodes import EnvSlot, EpisodeStats
from evorl.vector_env.rollout import (
    UNLIMITED,
    Plan,
    Starts,
    Store,
    auto_reset,
    play,
    whole_episodes,
)
from evorl.vector_env.starts import FromParams, OnLevels, Same, Table
from evorl.vector_env.vector_env import Behaviour, Played, VectorEnv, shares
from evorl.vector_env.world import World, leveled

__all__ = [
    "UNLIMITED",
    "Behaviour",
    "EnvSlot",
    "EpisodeStats",
    "FromParams",
    "OnLevels",
    "Plan",
    "Played",
    "Same",
    "Starts",
    "Store",
    "Table",
    "VectorEnv",
    "World",
    "auto_reset",
    "hosts",
    "leveled",
    "play",
    "shares",
    "whole_episodes",
]
