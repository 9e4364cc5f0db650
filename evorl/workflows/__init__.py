from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
from evorl.workflows.evolution import Evolution, EvolutionHyperparams
from evorl.workflows.off_policy import OffPolicy
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.shared_replay import SharedReplay
from evorl.workflows.vmapped import Vmapped

__all__ = [
    "CEMRL",
    "CEMRLHyperparams",
    "Evolution",
    "EvolutionHyperparams",
    "OffPolicy",
    "OnPolicy",
    "SharedReplay",
    "Vmapped",
]
