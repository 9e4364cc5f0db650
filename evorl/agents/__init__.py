from evorl.agents.learner import Learner
from evorl.agents.td3 import TD3, TD3Hyperparams

__all__ = ["TD3", "Learner", "TD3Hyperparams"]
