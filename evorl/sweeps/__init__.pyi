"""Sweeps: trainings with other numbers, one after the other or side by side, whose results say which to try next."""

from evorl.sweeps.protein import Protein as Protein
from evorl.sweeps.random_search import RandomSearch as RandomSearch
from evorl.sweeps.tpe import TPE as TPE
