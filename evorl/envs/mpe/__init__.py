"""The multi-agent particle environments, by mpe2's rules: MPE(scenario), scenarios a file each."""

from evorl.envs.mpe.adversary import SimpleAdversary
from evorl.envs.mpe.crypto import SimpleCrypto
from evorl.envs.mpe.env import MPE
from evorl.envs.mpe.formations import SimpleFormation, SimpleLine
from evorl.envs.mpe.push import SimplePush
from evorl.envs.mpe.simple import Simple
from evorl.envs.mpe.speech import SimpleReference, SimpleSpeakerListener
from evorl.envs.mpe.spread import SimpleSpread
from evorl.envs.mpe.tag import SimpleTag
from evorl.envs.mpe.treasure import CollectTreasure
from evorl.envs.mpe.world_comm import SimpleWorldComm

__all__ = [
    "MPE", "CollectTreasure", "Simple", "SimpleAdversary", "SimpleCrypto", "SimpleFormation", "SimpleLine",
    "SimplePush", "SimpleReference", "SimpleSpeakerListener", "SimpleSpread", "SimpleTag", "SimpleWorldComm",
]  # fmt: skip
