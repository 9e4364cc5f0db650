"""RL agents: networks, how they act, and the losses that they learn from."""

from evorl.agents.a2c import A2C as A2C
from evorl.agents.average_policy import AveragePolicy as AveragePolicy
from evorl.agents.base_agent import BaseAgent as BaseAgent
from evorl.agents.base_agent import fill_spaces as fill_spaces
from evorl.agents.bc import BC as BC
from evorl.agents.discrete_sac import DiscreteSAC as DiscreteSAC
from evorl.agents.dqn import DQN as DQN
from evorl.agents.impala import IMPALA as IMPALA
from evorl.agents.maac import MAAC as MAAC
from evorl.agents.maddpg import MADDPG as MADDPG
from evorl.agents.mlp_policy import MLPPolicy as MLPPolicy
from evorl.agents.muon import Muon as Muon
from evorl.agents.policy_gradient import PolicyGradient as PolicyGradient
from evorl.agents.ppo import PPO as PPO
from evorl.agents.puffer import Puffer as Puffer
from evorl.agents.random import Random as Random
from evorl.agents.sac import SAC as SAC
from evorl.agents.td3 import TD3 as TD3
from evorl.agents.team import Team as Team
from evorl.agents.train_state import Adam as Adam
from evorl.agents.train_state import TrainState as TrainState
from evorl.agents.value_decomposition import ValueDecomposition as ValueDecomposition
