"""Which segments of a rollout a minibatch takes."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import require
from evorl.parts import Number, number, part
from evorl.priors import LogUniform, OneMinus
from evorl.types import Key

MIN_PRIORITY = 1e-6  # added to a priority, so that what has no advantages may be drawn


@runtime_checkable
class Sampling(Protocol):
    """Draws segments for a minibatch: `length` steps of one environment each, with the memory before them.

    A length of 0 stands for one step, or for all of a rollout where the agent remembers.
    """

    @property
    def length(self) -> int:
        """Steps of a segment."""
        ...

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"]
    ) -> tuple[Int[Array, " n"], Any]:
        """Return which n segments, and what each weighs, [n], or None where all weigh alike.

        `turn` are the next n of a random order of all.
        """
        ...


@dataclass(frozen=True)
class Shuffled:
    """Every segment once in a pass, in random order."""

    length: int = 0

    def __post_init__(self) -> None:
        require(self.length >= 0, "sampling.length", self.length, "must not be negative")

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"]
    ) -> tuple[Int[Array, " n"], None]:
        del key, advantage
        return turn, None


SHUFFLED = Shuffled()


@part
class PrioritizedSegments:
    """Segments by the size of their advantages, none twice in a minibatch (PufferLib 3.0.0).

    With w = (sum over its steps of |A|)^alpha one of S segments is drawn with probability p = (w + 1e-6) over the sum
    of all, and its normalized advantages weigh (S p)^-beta.
    """

    length: int = 0
    alpha: Number = number(
        0.8, 0, about="exponent of priorities; 0: all segments alike", prior=OneMinus(LogUniform(1e-2, 0.9))
    )
    beta: Number = number(
        0.2, 0, 1, "how far weights correct for priorities; 1: wholly", OneMinus(LogUniform(1e-2, 0.9))
    )

    def __post_init__(self) -> None:
        require(self.length >= 0, "sampling.length", self.length, "must not be negative")

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"]
    ) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        p = compute_segment_probabilities(advantage, self.alpha)
        # the n largest of log p + Gumbel noise are drawn one after another without replacement
        rows = jax.lax.top_k(jnp.log(p) + jax.random.gumbel(key, p.shape), turn.size)[1]
        return rows, (p.size * p[rows]) ** -self.beta


def compute_segment_probabilities(
    advantage: Float[Array, "segments steps"], alpha: Array | float
) -> Float[Array, " segments"]:
    """By which each segment is drawn first; where its advantages are lost, the least."""
    size = jnp.abs(advantage).sum(1)
    w = jnp.where(jnp.isfinite(size), size, 0) ** alpha + MIN_PRIORITY
    return w / w.sum()
