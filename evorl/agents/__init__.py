from evorl.agents.a2c import A2C, A2CHyperparams
from evorl.agents.discrete_sac import DiscreteSAC, DiscreteSACHyperparams
from evorl.agents.dqn import DQN, DQNHyperparams
from evorl.agents.impala import IMPALA, IMPALAHyperparams
from evorl.agents.maac import MAAC, MAACHyperparams
from evorl.agents.maddpg import MADDPG, MADDPGHyperparams
from evorl.agents.mlp_policy import MLPPolicy, MLPPolicyHyperparams
from evorl.agents.muon import Muon
from evorl.agents.policy_gradient import PolicyGradient
from evorl.agents.ppo import PPO, PPOHyperparams
from evorl.agents.puffer import Puffer, PufferHyperparams
from evorl.agents.sac import SAC, SACHyperparams
from evorl.agents.td3 import TD3, TD3Hyperparams
from evorl.agents.train_state import TrainState
from evorl.agents.value_decomposition import ValueDecomposition

__all__ = [
    "A2C",
    "DQN",
    "IMPALA",
    "MAAC",
    "MADDPG",
    "PPO",
    "SAC",
    "TD3",
    "A2CHyperparams",
    "DQNHyperparams",
    "DiscreteSAC",
    "DiscreteSACHyperparams",
    "IMPALAHyperparams",
    "MAACHyperparams",
    "MADDPGHyperparams",
    "MLPPolicy",
    "MLPPolicyHyperparams",
    "Muon",
    "PPOHyperparams",
    "PolicyGradient",
    "Puffer",
    "PufferHyperparams",
    "SACHyperparams",
    "TD3Hyperparams",
    "TrainState",
    "ValueDecomposition",
]
