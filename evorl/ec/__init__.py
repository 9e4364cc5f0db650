from evorl.ec.ars import ARS, ARSHyperparams
from evorl.ec.cem import CEM, CEMHyperparams
from evorl.ec.cso import CSO, CSOHyperparams
from evorl.ec.genetic import GA, GAHyperparams
from evorl.ec.noise import Noise
from evorl.ec.openes import OpenES, OpenESHyperparams
from evorl.ec.vanilla_es import VanillaES, VanillaESHyperparams

__all__ = [
    "ARS",
    "CEM",
    "CSO",
    "GA",
    "ARSHyperparams",
    "CEMHyperparams",
    "CSOHyperparams",
    "GAHyperparams",
    "Noise",
    "OpenES",
    "OpenESHyperparams",
    "VanillaES",
    "VanillaESHyperparams",
]
