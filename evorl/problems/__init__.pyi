"""Benchmark functions to be maximized (implementations of types.Problem), each from its paper."""

from evorl.problems.arm import Arm as Arm
from evorl.problems.bbob import BBOB as BBOB
from evorl.problems.dtlz import DTLZ as DTLZ
from evorl.problems.learned_strategy import LearnedStrategy as LearnedStrategy
from evorl.problems.linear_projection import LinearProjection as LinearProjection
from evorl.problems.sphere import Sphere as Sphere
from evorl.problems.zdt import ZDT as ZDT
