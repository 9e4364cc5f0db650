"""Functions to be searched (types.Problem), each from its paper."""

from evorl.problems.arm import Arm
from evorl.problems.bbob import BBOB
from evorl.problems.dtlz import DTLZ
from evorl.problems.learned_strategy import LearnedStrategy
from evorl.problems.linear_projection import LinearProjection
from evorl.problems.sphere import Sphere
from evorl.problems.zdt import ZDT

__all__ = ["BBOB", "DTLZ", "ZDT", "Arm", "LearnedStrategy", "LinearProjection", "Sphere"]
