"""Unsupervised environment design: level buffers, scores, generators and the curricula that use them."""

from evorl.ued.buffer import LevelBuffer as LevelBuffer
from evorl.ued.generators import BredLevels as BredLevels
from evorl.ued.generators import EvolvedLevels as EvolvedLevels
from evorl.ued.generators import SampledLevels as SampledLevels
from evorl.ued.paired import PAIRED as PAIRED
from evorl.ued.plr import PLR as PLR
from evorl.ued.score_table import Curation as Curation
from evorl.ued.scores import BaseScore as BaseScore
from evorl.ued.scores import L1ValueLoss as L1ValueLoss
from evorl.ued.scores import Learnability as Learnability
from evorl.ued.scores import MaxMC as MaxMC
from evorl.ued.scores import NegativeReturn as NegativeReturn
from evorl.ued.scores import Outcome as Outcome
from evorl.ued.scores import PopulationRegret as PopulationRegret
from evorl.ued.scores import PositiveValueLoss as PositiveValueLoss
from evorl.ued.scores import RelativeRegret as RelativeRegret
from evorl.ued.scores import Score as Score
from evorl.ued.scores import TrueRegret as TrueRegret
from evorl.ued.scores import ValueDisagreement as ValueDisagreement
from evorl.ued.scores import check_score as check_score
from evorl.ued.sfl import SFL as SFL
