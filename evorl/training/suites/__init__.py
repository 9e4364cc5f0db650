"""Evaluation suites: what a policy is worth on mazes that it was not trained on, or on the worst of its levels."""

from evorl.training.suites.mazes import MazeSuite, in_training
from evorl.training.suites.risk import Risk

__all__ = ["MazeSuite", "Risk", "in_training"]
