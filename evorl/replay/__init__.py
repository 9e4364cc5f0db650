from evorl.replay.frames import FrameReplay
from evorl.replay.parts import join, split
from evorl.replay.prioritized import PrioritizedReplay
from evorl.replay.reservoir import Reservoir, ReservoirReplay
from evorl.replay.ring import UNIFORM, Ring, UniformReplay
from evorl.replay.row import Row
from evorl.replay.sequences import SequenceReplay

__all__ = [
    "UNIFORM",
    "FrameReplay",
    "PrioritizedReplay",
    "Reservoir",
    "ReservoirReplay",
    "Ring",
    "Row",
    "SequenceReplay",
    "UniformReplay",
    "join",
    "split",
]
