"""Planar arm, a benchmark of quality diversity."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require_int
from evorl.problems.box import sample_uniform
from evorl.types import Key, QDEvaluation


@dataclass(frozen=True)
class Arm:
    """Planar arm: reach every position, with joint angles as equal as possible.

    The arm has links of equal length and total length 1. The parameters are the joint angles in radians, each
    relative to the previous link. Fitness is minus the variance of the angles. The descriptor is the position
    of the end of the arm, shape [2], at a distance of at most 1 from its base.

    Args:
        joints: Number of joints.

    Source: Cully et al. 2015, doi:10.1038/nature14422, supplement; Vassiliades & Mouret 2018,
    arXiv:1804.03906, section 4.
    """

    joints: int = 8

    bounds = (-math.pi, math.pi)

    def __post_init__(self) -> None:
        require_int("joints", self.joints)

    def init(self, key: Key) -> Float[Array, " joints"]:
        return sample_uniform(key, self.bounds, self.joints)

    def evaluate(self, key: Key, params: Float[Array, " joints"]) -> QDEvaluation:
        del key
        along = jnp.cumsum(params)
        return QDEvaluation(-jnp.var(params), jnp.stack([jnp.cos(along).mean(), jnp.sin(along).mean()]))
