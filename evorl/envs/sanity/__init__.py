"""Small environments that each ask for one ability of an agent; `python -m evorl.sanity` trains on them.

The rules are those of PufferLib's. Each has score(env_state), of an ended episode, from 0 to 1.
"""

from evorl.envs.sanity.bandit import Bandit
from evorl.envs.sanity.continuous import Continuous
from evorl.envs.sanity.grid import Grid
from evorl.envs.sanity.memory import DigitMemory
from evorl.envs.sanity.pair import PairGame
from evorl.envs.sanity.password import Password
from evorl.envs.sanity.spaces import Spaces
from evorl.envs.sanity.squared import Squared
from evorl.envs.sanity.stochastic import Stochastic

__all__ = [
    "Bandit",
    "Continuous",
    "DigitMemory",
    "Grid",
    "PairGame",
    "Password",
    "Spaces",
    "Squared",
    "Stochastic",
]
