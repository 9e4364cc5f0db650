from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
from evorl.workflows.erl import ERL, ERLHyperparams
from evorl.workflows.evolution import Evolution, EvolutionHyperparams
from evorl.workflows.meta_es import MetaES, MetaESHyperparams
from evorl.workflows.off_policy import OffPolicy
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.pbt import PBT, PBTHyperparams
from evorl.workflows.pga_me import PGAME, PGAMEHyperparams
from evorl.workflows.search import Search, SearchHyperparams
from evorl.workflows.shared_replay import SharedReplay
from evorl.workflows.vmapped import Vmapped

__all__ = [
    "CEMRL", "ERL", "PBT", "PGAME", "CEMRLHyperparams", "ERLHyperparams",
    "Evolution", "EvolutionHyperparams", "MetaES", "MetaESHyperparams",
    "OffPolicy", "OnPolicy", "PBTHyperparams", "PGAMEHyperparams", "Search", "SearchHyperparams",
    "SharedReplay", "Vmapped",
]  # fmt: skip
