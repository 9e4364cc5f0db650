from evorl.population.search import Choice, Integer, LogUniform, Neg, OneMinus, Prior, Space, Uniform
from evorl.population.select import NoSelection, Pairs, Selection, Tournament, Truncation
from evorl.population.variation import (
    Evolved,
    Perturb,
    PerturbHyperparams,
    Resample,
    ResampleHyperparams,
    Swarm,
    SwarmHyperparams,
    Variation,
)

__all__ = [
    "Choice", "Evolved", "Integer", "LogUniform", "Neg", "NoSelection", "OneMinus", "Pairs", "Perturb",
    "PerturbHyperparams", "Prior", "Resample", "ResampleHyperparams", "Selection", "Space", "Swarm", "SwarmHyperparams",
    "Tournament", "Truncation", "Uniform", "Variation",
]  # fmt: skip
