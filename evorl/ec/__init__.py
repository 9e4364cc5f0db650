from evorl.ec.cem import CEM, CEMHyperparams
from evorl.ec.cma_es import CMAES, CMAESHyperparams
from evorl.ec.covariance import Diagonal, Full
from evorl.ec.restarts import Restarts, RestartsHyperparams

__all__ = ["CEM", "CMAES", "CEMHyperparams", "CMAESHyperparams", "Diagonal", "Full", "Restarts", "RestartsHyperparams"]
