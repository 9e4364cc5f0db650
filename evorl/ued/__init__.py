"""Unsupervised environment design: level buffers, scores, generators and the curricula that use them."""

from evorl.ued.adversary import Adversary, AdversaryHyperparams
from evorl.ued.buffer import LevelBuffer
from evorl.ued.learnable import Learnable, LearnableHyperparams
from evorl.ued.plr import PLR, PLRHyperparams
from evorl.ued.score_table import CurationHyperparams
from evorl.ued.scores import (
    UNSOLVABLE_MESSAGE,
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
    "PLR",
    "UNSOLVABLE_MESSAGE",
    "Adversary",
    "AdversaryHyperparams",
    "CurationHyperparams",
    "L1ValueLoss",
    "Learnability",
    "Learnable",
    "LearnableHyperparams",
    "LevelBuffer",
    "MaxMC",
    "NegativeReturn",
    "Outcome",
    "PLRHyperparams",
    "PopulationRegret",
    "PositiveValueLoss",
    "RelativeRegret",
    "Score",
    "TrueRegret",
    "ValueDisagreement",
    "can_be_solved",
    "check_score",
]
