"""Workflows: training algorithms that combine agents, evolvers and environments."""

from evorl.workflows.base import BaseStagedWorkflow as BaseStagedWorkflow
from evorl.workflows.cem_rl import CEMRL as CEMRL
from evorl.workflows.erl import ERL as ERL
from evorl.workflows.evolution import Evolution as Evolution
from evorl.workflows.meta_es import MetaES as MetaES
from evorl.workflows.off_policy import OffPolicy as OffPolicy
from evorl.workflows.on_policy import OnPolicy as OnPolicy
from evorl.workflows.pbt import PBT as PBT
from evorl.workflows.pga_me import PGAME as PGAME
from evorl.workflows.sampling import PrioritizedSegments as PrioritizedSegments
from evorl.workflows.sampling import Shuffled as Shuffled
from evorl.workflows.search import Search as Search
from evorl.workflows.shared_replay import SharedReplay as SharedReplay
from evorl.workflows.vmapped import Vmapped as Vmapped
