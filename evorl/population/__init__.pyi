"""Populations of runs: search spaces of hyperparameters, selection and variation."""

from evorl.population.search import PriorSpace as PriorSpace
from evorl.population.select import NoSelection as NoSelection
from evorl.population.select import Pairs as Pairs
from evorl.population.select import Selection as Selection
from evorl.population.select import Tournament as Tournament
from evorl.population.select import Truncation as Truncation
from evorl.population.variation import EvolverVariation as EvolverVariation
from evorl.population.variation import Generation as Generation
from evorl.population.variation import Perturb as Perturb
from evorl.population.variation import Resample as Resample
from evorl.population.variation import Swarm as Swarm
from evorl.population.variation import Variation as Variation
