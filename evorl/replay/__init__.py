from evorl.replay.parts import join, split
from evorl.replay.prioritized import PrioritizedReplay
from evorl.replay.ring import UNIFORM, Ring, UniformReplay
from evorl.replay.row import Row

__all__ = ["UNIFORM", "PrioritizedReplay", "Ring", "Row", "UniformReplay", "join", "split"]
