from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
from evorl.workflows.erl import ERL, ERLHyperparams
from evorl.workflows.evolution import Evolution, EvolutionHyperparams
from evorl.workflows.off_policy import OffPolicy
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.vmapped import Vmapped

__all__ = [
    "CEMRL", "ERL", "CEMRLHyperparams", "ERLHyperparams", "Evolution", "EvolutionHyperparams", "OffPolicy", "OnPolicy",
    "Vmapped",
]  # fmt: skip
