from evorl.replay.frames import FrameReplay
from evorl.replay.prioritized import PrioritizedReplay
from evorl.replay.reservoir import ReservoirBuffer, ReservoirReplay
from evorl.replay.ring import UNIFORM, RingBuffer, UniformReplay
from evorl.replay.row_layout import RowLayout
from evorl.replay.sequences import SequenceReplay
from evorl.replay.state_replays import join_replays, split_replays

__all__ = [
    "UNIFORM",
    "FrameReplay",
    "PrioritizedReplay",
    "ReservoirBuffer",
    "ReservoirReplay",
    "RingBuffer",
    "RowLayout",
    "SequenceReplay",
    "UniformReplay",
    "join_replays",
    "split_replays",
]
