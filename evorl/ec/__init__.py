from evorl.ec.ars import ARS, ARSHyperparams
from evorl.ec.cem import CEM, CEMHyperparams
from evorl.ec.cma_es import CMAES, CMAESHyperparams
from evorl.ec.covariance import DiagonalCovariance, FullCovariance
from evorl.ec.cso import CSO, CSOHyperparams
from evorl.ec.genetic import GA, GAHyperparams
from evorl.ec.low_rank_es import LowRankES
from evorl.ec.map_elites import MapElites, MapElitesHyperparams
from evorl.ec.noise import Noise
from evorl.ec.novelty import Novelty, NoveltyHyperparams
from evorl.ec.novelty_es import NoveltyES, NoveltyESHyperparams
from evorl.ec.nsga2 import NSGA2, NSGA2Hyperparams
from evorl.ec.openes import OpenES, OpenESHyperparams
from evorl.ec.restarts import Restarts, RestartsHyperparams
from evorl.ec.rvea import RVEA, RVEAHyperparams
from evorl.ec.seed_ga import SeedGA, SeedGAHyperparams
from evorl.ec.seeded_es import SeededES
from evorl.ec.vanilla_es import VanillaES, VanillaESHyperparams

__all__ = [
    "ARS",
    "CEM",
    "CMAES",
    "CSO",
    "GA",
    "NSGA2",
    "RVEA",
    "ARSHyperparams",
    "CEMHyperparams",
    "CMAESHyperparams",
    "CSOHyperparams",
    "DiagonalCovariance",
    "FullCovariance",
    "GAHyperparams",
    "LowRankES",
    "MapElites",
    "MapElitesHyperparams",
    "NSGA2Hyperparams",
    "Noise",
    "Novelty",
    "NoveltyES",
    "NoveltyESHyperparams",
    "NoveltyHyperparams",
    "OpenES",
    "OpenESHyperparams",
    "RVEAHyperparams",
    "Restarts",
    "RestartsHyperparams",
    "SeedGA",
    "SeedGAHyperparams",
    "SeededES",
    "VanillaES",
    "VanillaESHyperparams",
]
