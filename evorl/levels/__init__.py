from evorl.levels.buffer import LevelBuffer
from evorl.levels.ledger import CurationHyperparams
from evorl.levels.scores import (
    L1ValueLoss,
    Learnability,
    MaxMC,
    NegativeReturn,
    Outcome,
    PopulationRegret,
    PositiveValueLoss,
    RelativeRegret,
    Score,
    TrueRegret,
    ValueDisagreement,
    check_score,
)

__all__ = [
    "CurationHyperparams", "L1ValueLoss", "Learnability", "LevelBuffer", "MaxMC", "NegativeReturn", "Outcome",
    "PopulationRegret", "PositiveValueLoss", "RelativeRegret", "Score", "TrueRegret", "ValueDisagreement",
    "check_score",
]  # fmt: skip
