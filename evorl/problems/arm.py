"""A planar arm, of quality-diversity's repertoires: where it ends, and how evenly it bends."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import require_int
from evorl.problems.box import sample_uniform
from evorl.types import Key, QDEvaluation


@dataclass(frozen=True)
class Arm:
    """An arm of so many equal joints, of length 1 in all, whose angles in radians are relative to the link before.

    Cully et al. 2015, doi:10.1038/nature14422, supplement; Vassiliades & Mouret 2018, arXiv:1804.03906, section 4.
    Fitness is minus the variance of the angles, the descriptor the end [2], at most 1 from where the arm begins.
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
