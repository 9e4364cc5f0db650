"""Evolutionary reinforcement learning on JAX: the names that a notebook uses, imported when first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.agents.a2c import A2C, A2CHyperparams
    from evorl.agents.discrete_sac import DiscreteSAC, DiscreteSACHyperparams
    from evorl.agents.dqn import DQN, DQNHyperparams
    from evorl.agents.impala import IMPALA, IMPALAHyperparams
    from evorl.agents.policy_gradient import PolicyGradient
    from evorl.agents.ppo import PPO, PPOHyperparams
    from evorl.agents.random import Random, RandomHyperparams
    from evorl.agents.sac import SAC, SACHyperparams
    from evorl.agents.td3 import TD3, TD3Hyperparams
    from evorl.ec.cem import CEM, CEMHyperparams
    from evorl.ec.evosax import Evosax
    from evorl.envs.brax import Brax
    from evorl.envs.gymnax import Gymnax
    from evorl.envs.maze import Maze
    from evorl.envs.wrappers import Rewards
    from evorl.training.fit import fit
    from evorl.training.progress import Budget
    from evorl.training.runs import load
    from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
    from evorl.workflows.off_policy import OffPolicy
    from evorl.workflows.on_policy import OnPolicy
    from evorl.workflows.vmapped import Vmapped

_MODULES = {
    "A2C": "agents.a2c",
    "CEM": "ec.cem",
    "CEMRL": "workflows.cem_rl",
    "DQN": "agents.dqn",
    "IMPALA": "agents.impala",
    "PPO": "agents.ppo",
    "SAC": "agents.sac",
    "TD3": "agents.td3",
    "A2CHyperparams": "agents.a2c",
    "Brax": "envs.brax",
    "Budget": "training.progress",
    "CEMHyperparams": "ec.cem",
    "CEMRLHyperparams": "workflows.cem_rl",
    "DQNHyperparams": "agents.dqn",
    "DiscreteSAC": "agents.discrete_sac",
    "DiscreteSACHyperparams": "agents.discrete_sac",
    "Evosax": "ec.evosax",
    "Gymnax": "envs.gymnax",
    "IMPALAHyperparams": "agents.impala",
    "Maze": "envs.maze",
    "OffPolicy": "workflows.off_policy",
    "OnPolicy": "workflows.on_policy",
    "PPOHyperparams": "agents.ppo",
    "PolicyGradient": "agents.policy_gradient",
    "Random": "agents.random",
    "RandomHyperparams": "agents.random",
    "Rewards": "envs.wrappers",
    "SACHyperparams": "agents.sac",
    "TD3Hyperparams": "agents.td3",
    "Vmapped": "workflows.vmapped",
    "fit": "training.fit",
    "load": "training.runs",
}
__all__ = [
    "A2C", "CEM", "CEMRL", "DQN", "IMPALA", "PPO", "SAC", "TD3", "A2CHyperparams", "Brax", "Budget",
    "CEMHyperparams", "CEMRLHyperparams", "DQNHyperparams", "DiscreteSAC", "DiscreteSACHyperparams", "Evosax",
    "Gymnax", "IMPALAHyperparams", "Maze", "OffPolicy", "OnPolicy", "PPOHyperparams", "PolicyGradient", "Random",
    "RandomHyperparams", "Rewards", "SACHyperparams", "TD3Hyperparams", "Vmapped", "fit", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'evorl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"evorl.{_MODULES[name]}"), name)
