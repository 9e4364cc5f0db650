"""Multi-agent particle environments with the rules of mpe2: MPE(scenario), one file per scenario."""

from evorl.envs.mpe.adversary import SimpleAdversary as SimpleAdversary
from evorl.envs.mpe.crypto import SimpleCrypto as SimpleCrypto
from evorl.envs.mpe.env import MPE as MPE
from evorl.envs.mpe.formations import SimpleFormation as SimpleFormation
from evorl.envs.mpe.formations import SimpleLine as SimpleLine
from evorl.envs.mpe.push import SimplePush as SimplePush
from evorl.envs.mpe.simple import Simple as Simple
from evorl.envs.mpe.speech import SimpleReference as SimpleReference
from evorl.envs.mpe.speech import SimpleSpeakerListener as SimpleSpeakerListener
from evorl.envs.mpe.spread import SimpleSpread as SimpleSpread
from evorl.envs.mpe.tag import SimpleTag as SimpleTag
from evorl.envs.mpe.treasure import CollectTreasure as CollectTreasure
from evorl.envs.mpe.world_comm import SimpleWorldComm as SimpleWorldComm
