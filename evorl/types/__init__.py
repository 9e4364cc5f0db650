"""The types and protocols that all parts share. Protocols are structural: nothing inherits from them."""

from evorl.types.agents import ActorCritic, Agent, OffPolicyAgent, OnPolicyAgent
from evorl.types.data import (
    Array,
    Batch,
    Hyperparams,
    Key,
    Level,
    Memory,
    Metrics,
    Params,
    Sample,
    SlotPolicy,
    State,
    TimeStep,
    Transition,
)
from evorl.types.envs import Describes, Editable, Editor, Env, Judged, KnowsOptimum, Leveled, Mutates, Summarizes
from evorl.types.evolvers import Evolver, FromMembers, Judges, TakesParams
from evorl.types.hyperparameters import Declares, Discounted, Prior, Scheduled
from evorl.types.populations import Evolves, Population
from evorl.types.replays import Prioritizes, Replay, Replays
from evorl.types.workflows import Acts, Advances, Iterates, Parallel, Placed, SpreadByDefault, Workflow

__all__ = [
    "ActorCritic",
    "Acts",
    "Advances",
    "Agent",
    "Array",
    "Batch",
    "Declares",
    "Describes",
    "Discounted",
    "Editable",
    "Editor",
    "Env",
    "Evolver",
    "Evolves",
    "FromMembers",
    "Hyperparams",
    "Iterates",
    "Judged",
    "Judges",
    "Key",
    "KnowsOptimum",
    "Level",
    "Leveled",
    "Memory",
    "Metrics",
    "Mutates",
    "OffPolicyAgent",
    "OnPolicyAgent",
    "Parallel",
    "Params",
    "Placed",
    "Population",
    "Prior",
    "Prioritizes",
    "Replay",
    "Replays",
    "Sample",
    "Scheduled",
    "SlotPolicy",
    "SpreadByDefault",
    "State",
    "Summarizes",
    "TakesParams",
    "TimeStep",
    "Transition",
    "Workflow",
]
