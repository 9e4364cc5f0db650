from evorl.levels.buffer import LevelBuffer
from evorl.levels.ledger import CurationHyperparams
from evorl.levels.scores import (
    NEVER_SOLVED,
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
    can_be_solved,
    check_score,
)

__all__ = [
    "NEVER_SOLVED",
    "CurationHyperparams",
    "L1ValueLoss",
    "Learnability",
    "LevelBuffer",
    "MaxMC",
    "NegativeReturn",
    "Outcome",
    "PopulationRegret",
    "PositiveValueLoss",
    "RelativeRegret",
    "Score",
    "TrueRegret",
    "ValueDisagreement",
    "can_be_solved",
    "check_score",
]  # fmt: skip
