"""Evaluation suites: tests of a policy on mazes that it was not trained on, or on its worst levels."""

from evorl.training.suites.mazes import MazeSuite as MazeSuite
from evorl.training.suites.risk import RiskSuite as RiskSuite
