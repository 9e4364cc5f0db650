"""Evolutionary reinforcement learning on JAX: the names that a notebook uses, imported when first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evorl.agents.td3 import TD3, TD3Hyperparams
    from evorl.ec.cem import CEM, CEMHyperparams
    from evorl.ec.evosax import Evosax
    from evorl.envs.brax import Brax
    from evorl.envs.gymnax import Gymnax
    from evorl.training.fit import fit
    from evorl.training.progress import Budget
    from evorl.training.runs import load
    from evorl.workflows.cem_rl import CEMRL, CEMRLHyperparams
    from evorl.workflows.off_policy import OffPolicy
    from evorl.workflows.vmapped import Vmapped

_MODULES = {
    "CEM": "ec.cem",
    "CEMHyperparams": "ec.cem",
    "CEMRL": "workflows.cem_rl",
    "CEMRLHyperparams": "workflows.cem_rl",
    "TD3": "agents.td3",
    "TD3Hyperparams": "agents.td3",
    "Brax": "envs.brax",
    "Budget": "training.progress",
    "Evosax": "ec.evosax",
    "Gymnax": "envs.gymnax",
    "OffPolicy": "workflows.off_policy",
    "Vmapped": "workflows.vmapped",
    "fit": "training.fit",
    "load": "training.runs",
}
__all__ = [  # noqa: RUF022  as in _MODULES
    "CEM", "CEMHyperparams", "CEMRL", "CEMRLHyperparams", "TD3", "TD3Hyperparams", "Brax", "Budget", "Evosax", "Gymnax",
    "OffPolicy", "Vmapped", "fit", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'evorl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"evorl.{_MODULES[name]}"), name)
