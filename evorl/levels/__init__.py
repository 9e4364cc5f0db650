from evorl.levels.buffer import LevelBuffer
from evorl.levels.ledger import CurationHyperparams

__all__ = ["CurationHyperparams", "LevelBuffer"]
