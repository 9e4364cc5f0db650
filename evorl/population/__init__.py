from evorl.population.search import PriorSpace
from evorl.population.select import NoSelection, Pairs, Selection, Tournament, Truncation
from evorl.population.variation import (
    EvolverVariation,
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
    "Choice",
    "EvolverVariation",
    "Generation",
    "Integer",
    "LogUniform",
    "Neg",
    "NoSelection",
    "OneMinus",
    "Pairs",
    "Perturb",
    "PerturbHyperparams",
    "PowerOfTwo",
    "PriorSpace",
    "Resample",
    "ResampleHyperparams",
    "Selection",
    "Swarm",
    "SwarmHyperparams",
    "Tournament",
    "Truncation",
    "Uniform",
    "Variation",
]
