"""Evolutionary reinforcement learning on JAX: the names that a notebook uses, imported when first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.agents.a2c import A2C, A2CHyperparams
    from evorl.agents.discrete_sac import DiscreteSAC, DiscreteSACHyperparams
    from evorl.agents.dqn import DQN, DQNHyperparams
    from evorl.agents.impala import IMPALA, IMPALAHyperparams
    from evorl.agents.mlp_policy import MLPPolicy
    from evorl.agents.policy_gradient import PolicyGradient
    from evorl.agents.ppo import PPO, PPOHyperparams
    from evorl.agents.random import Random, RandomHyperparams
    from evorl.agents.sac import SAC, SACHyperparams
    from evorl.agents.td3 import TD3, TD3Hyperparams
    from evorl.ec.ars import ARS, ARSHyperparams
    from evorl.ec.cem import CEM, CEMHyperparams
    from evorl.ec.cso import CSO, CSOHyperparams
    from evorl.ec.evosax import Evosax
    from evorl.ec.genetic import GA, GAHyperparams
    from evorl.ec.noise import Noise
    from evorl.ec.openes import OpenES, OpenESHyperparams
    from evorl.ec.vanilla_es import VanillaES, VanillaESHyperparams
    from evorl.envs.brax import Brax
    from evorl.envs.gymnax import Gymnax
    from evorl.envs.maze import Maze
    from evorl.envs.wrappers import Frames, Rewards
    from evorl.population.search import Choice, Integer, LogUniform, Neg, OneMinus, Uniform
    from evorl.population.select import NoSelection, Pairs, Tournament, Truncation
    from evorl.population.variation import (
        Evolved,
        Perturb,
        PerturbHyperparams,
        Resample,
        ResampleHyperparams,
        Swarm,
        SwarmHyperparams,
    )
    from evorl.training.fit import fit
    from evorl.training.progress import Budget
    from evorl.training.runs import load
    from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
    from evorl.workflows.erl import ERL, ERLHyperparams
    from evorl.workflows.evolution import Evolution, EvolutionHyperparams
    from evorl.workflows.meta_es import MetaES, MetaESHyperparams
    from evorl.workflows.off_policy import OffPolicy
    from evorl.workflows.on_policy import OnPolicy
    from evorl.workflows.pbt import PBT, PBTHyperparams
    from evorl.workflows.shared_replay import SharedReplay
    from evorl.workflows.vmapped import Vmapped

_MODULES = {
    "A2C": "agents.a2c",
    "ARS": "ec.ars",
    "CEM": "ec.cem",
    "CEMRL": "workflows.cem_rl",
    "CSO": "ec.cso",
    "DQN": "agents.dqn",
    "ERL": "workflows.erl",
    "GA": "ec.genetic",
    "IMPALA": "agents.impala",
    "PBT": "workflows.pbt",
    "PPO": "agents.ppo",
    "SAC": "agents.sac",
    "TD3": "agents.td3",
    "A2CHyperparams": "agents.a2c",
    "ARSHyperparams": "ec.ars",
    "Brax": "envs.brax",
    "Budget": "training.progress",
    "CEMHyperparams": "ec.cem",
    "CEMRLHyperparams": "workflows.cem_rl",
    "CSOHyperparams": "ec.cso",
    "Choice": "population.search",
    "DQNHyperparams": "agents.dqn",
    "DiscreteSAC": "agents.discrete_sac",
    "DiscreteSACHyperparams": "agents.discrete_sac",
    "ERLHyperparams": "workflows.erl",
    "Evolution": "workflows.evolution",
    "EvolutionHyperparams": "workflows.evolution",
    "Evolved": "population.variation",
    "Evosax": "ec.evosax",
    "Frames": "envs.wrappers",
    "GAHyperparams": "ec.genetic",
    "Gymnax": "envs.gymnax",
    "IMPALAHyperparams": "agents.impala",
    "Integer": "population.search",
    "LogUniform": "population.search",
    "MLPPolicy": "agents.mlp_policy",
    "Maze": "envs.maze",
    "MetaES": "workflows.meta_es",
    "MetaESHyperparams": "workflows.meta_es",
    "Neg": "population.search",
    "NoSelection": "population.select",
    "Noise": "ec.noise",
    "OffPolicy": "workflows.off_policy",
    "OnPolicy": "workflows.on_policy",
    "OneMinus": "population.search",
    "OpenES": "ec.openes",
    "OpenESHyperparams": "ec.openes",
    "PBTHyperparams": "workflows.pbt",
    "PPOHyperparams": "agents.ppo",
    "Pairs": "population.select",
    "Perturb": "population.variation",
    "PerturbHyperparams": "population.variation",
    "PolicyGradient": "agents.policy_gradient",
    "Random": "agents.random",
    "RandomHyperparams": "agents.random",
    "Resample": "population.variation",
    "ResampleHyperparams": "population.variation",
    "Rewards": "envs.wrappers",
    "SACHyperparams": "agents.sac",
    "SharedReplay": "workflows.shared_replay",
    "Swarm": "population.variation",
    "SwarmHyperparams": "population.variation",
    "TD3Hyperparams": "agents.td3",
    "Tournament": "population.select",
    "Truncation": "population.select",
    "Uniform": "population.search",
    "VanillaES": "ec.vanilla_es",
    "VanillaESHyperparams": "ec.vanilla_es",
    "Vmapped": "workflows.vmapped",
    "fit": "training.fit",
    "load": "training.runs",
}
__all__ = [
    "A2C", "ARS", "CEM", "CEMRL", "CSO", "DQN", "ERL", "GA", "IMPALA", "PBT", "PPO", "SAC", "TD3", "A2CHyperparams",
    "ARSHyperparams", "Brax", "Budget", "CEMHyperparams", "CEMRLHyperparams", "CSOHyperparams", "Choice",
    "DQNHyperparams", "DiscreteSAC", "DiscreteSACHyperparams", "ERLHyperparams", "Evolution",
    "EvolutionHyperparams", "Evolved", "Evosax", "Frames", "GAHyperparams", "Gymnax", "IMPALAHyperparams", "Integer",
    "LogUniform", "MLPPolicy", "Maze", "MetaES", "MetaESHyperparams", "Neg", "NoSelection", "Noise", "OffPolicy",
    "OnPolicy", "OneMinus", "OpenES", "OpenESHyperparams", "PBTHyperparams", "PPOHyperparams", "Pairs", "Perturb",
    "PerturbHyperparams", "PolicyGradient", "Random", "RandomHyperparams", "Resample", "ResampleHyperparams",
    "Rewards", "SACHyperparams", "SharedReplay", "Swarm", "SwarmHyperparams", "TD3Hyperparams", "Tournament",
    "Truncation", "Uniform", "VanillaES", "VanillaESHyperparams", "Vmapped", "fit", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'evorl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"evorl.{_MODULES[name]}"), name)
