from evorl.population.search import Space
from evorl.population.select import NoSelection, Pairs, Selection, Tournament, Truncation
from evorl.population.variation import (
    Evolved,
    Generation,
    Perturb,
    PerturbHyperparams,
    Resample,
    ResampleHyperparams,
    Swarm,
    SwarmHyperparams,
    Variation,
)
from evorl.priors import Choice, Integer, LogUniform, Neg, OneMinus, PowerOfTwo, Uniform

__all__ = [
    "Choice", "Evolved", "Generation", "Integer", "LogUniform", "Neg", "NoSelection", "OneMinus", "Pairs", "Perturb",
    "PerturbHyperparams", "PowerOfTwo", "Resample", "ResampleHyperparams", "Selection", "Space", "Swarm",
    "SwarmHyperparams", "Tournament", "Truncation", "Uniform", "Variation",
]  # fmt: skip
