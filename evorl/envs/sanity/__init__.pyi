"""Small environments that each test one ability of an agent; `python -m evorl.sanity` trains agents on them.

The rules are those of PufferLib's sanity environments. Each has `score(env_state)`, which rates an ended
episode from 0 to 1.
"""

from evorl.envs.sanity.bandit import Bandit as Bandit
from evorl.envs.sanity.continuous import Continuous as Continuous
from evorl.envs.sanity.grid import Grid as Grid
from evorl.envs.sanity.memory import DigitMemory as DigitMemory
from evorl.envs.sanity.pair import PairGame as PairGame
from evorl.envs.sanity.password import Password as Password
from evorl.envs.sanity.spaces import Spaces as Spaces
from evorl.envs.sanity.squared import Squared as Squared
from evorl.envs.sanity.stochastic import Stochastic as Stochastic
