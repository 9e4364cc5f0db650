from evorl.ec.ars import ARS, ARSHyperparams
from evorl.ec.cem import CEM, CEMHyperparams
from evorl.ec.cma_es import CMAES, CMAESHyperparams
from evorl.ec.covariance import Diagonal, Full
from evorl.ec.cso import CSO, CSOHyperparams
from evorl.ec.genetic import GA, GAHyperparams
from evorl.ec.low_rank_es import LowRankES
from evorl.ec.noise import Noise
from evorl.ec.openes import OpenES, OpenESHyperparams
from evorl.ec.restarts import Restarts, RestartsHyperparams
from evorl.ec.seeded_es import SeededES
from evorl.ec.vanilla_es import VanillaES, VanillaESHyperparams

__all__ = [
    "ARS",
    "CEM",
    "CMAES",
    "CSO",
    "GA",
    "ARSHyperparams",
    "CEMHyperparams",
    "CMAESHyperparams",
    "CSOHyperparams",
    "Diagonal",
    "Full",
    "GAHyperparams",
    "LowRankES",
    "Noise",
    "OpenES",
    "OpenESHyperparams",
    "Restarts",
    "RestartsHyperparams",
    "SeededES",
    "VanillaES",
    "VanillaESHyperparams",
]
