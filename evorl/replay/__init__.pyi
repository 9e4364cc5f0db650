"""Replay buffers: uniform, prioritized, of sequences, of frames, and reservoirs."""

from evorl.replay.frames import FrameReplay as FrameReplay
from evorl.replay.prioritized import PrioritizedReplay as PrioritizedReplay
from evorl.replay.reservoir import ReservoirReplay as ReservoirReplay
from evorl.replay.ring import UniformReplay as UniformReplay
from evorl.replay.sequences import SequenceReplay as SequenceReplay
