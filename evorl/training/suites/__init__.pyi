"""Evaluation suites: what a policy is worth on mazes that it was not trained on, or on the worst of its levels."""

from evorl.training.suites.mazes import MazeSuite as MazeSuite
from evorl.training.suites.risk import RiskSuite as RiskSuite
