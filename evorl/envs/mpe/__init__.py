"""The multi-agent particle environments, by mpe2's rules: MPE(scenario), scenarios a file each."""

from evorl.envs.mpe.adversary import Adversary
from evorl.envs.mpe.crypto import Crypto
from evorl.envs.mpe.env import MPE
from evorl.envs.mpe.formations import Formation, Line
from evorl.envs.mpe.push import Push
from evorl.envs.mpe.simple import Simple
from evorl.envs.mpe.speech import Reference, SpeakerListener
from evorl.envs.mpe.spread import Spread
from evorl.envs.mpe.tag import Tag
from evorl.envs.mpe.treasure import Treasure
from evorl.envs.mpe.world_comm import WorldComm

__all__ = [
    "MPE", "Adversary", "Crypto", "Formation", "Line", "Push", "Reference", "Simple", "SpeakerListener", "Spread",
    "Tag", "Treasure", "WorldComm",
]  # fmt: skip
