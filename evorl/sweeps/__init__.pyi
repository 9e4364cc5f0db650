"""Hyperparameter sweeps: trainings with different values, whose results determine which values to try next."""

from evorl.sweeps.protein import Protein as Protein
from evorl.sweeps.random_search import RandomSearch as RandomSearch
from evorl.sweeps.tpe import TPE as TPE
