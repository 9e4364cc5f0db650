"""Sampling of the segments of a rollout that a minibatch takes."""

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

MIN_PRIORITY = 1e-6  # added to each priority, so that segments with zero advantages can be drawn


@runtime_checkable
class Sampling(Protocol):
    """Protocol of a sampling, which draws the segments of a minibatch.

    A segment is `length` consecutive steps of one environment, with the recurrent state before them.
    """

    @property
    def length(self) -> int:
        """Return the number of steps in a segment; 0 for one step, or for the whole rollout of a recurrent agent."""
        ...

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"]
    ) -> tuple[Int[Array, " n"], Any]:
        """Draw the n segments of a minibatch.

        Args:
            key: Random key.
            turn: The next n indices of a random order of all segments, shape [n].
            advantage: Advantages of all segments, shape [segments, steps].

        Returns:
            Indices of the segments, shape [n], and their weights, shape [n], or None for equal weights.
        """
        ...


@dataclass(frozen=True)
class Shuffled:
    """Shuffled sampling: an epoch takes every segment once, in random order.

    Args:
        length: Number of steps in a segment; 0 for one step, or for the whole rollout if the agent is
            recurrent.
    """

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
    """Prioritized sampling of segments by the size of their advantages, without repetition in a minibatch.

    With w = (sum over the steps of |A|)^alpha, one of S segments is drawn with probability p = (w + 1e-6) /
    sum of (w + 1e-6) over all segments. Its normalized advantages are multiplied by the weight (S p)^-beta.

    Args:
        length: Number of steps in a segment; 0 for one step, or for the whole rollout if the agent is
            recurrent.

    Source: PufferLib 3.0.0.
    """

    length: int = 0
    alpha: Number = number(
        0.8,
        0,
        about="exponent of the priorities; 0 gives all segments the same priority",
        prior=OneMinus(LogUniform(1e-2, 0.9)),
    )
    beta: Number = number(
        0.2,
        0,
        1,
        "exponent of the weights that correct for the priorities; 1 corrects fully",
        OneMinus(LogUniform(1e-2, 0.9)),
    )

    def __post_init__(self) -> None:
        require(self.length >= 0, "sampling.length", self.length, "must not be negative")

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"]
    ) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        p = compute_segment_probabilities(advantage, self.alpha)
        # Gumbel top-k: the n largest of log p + Gumbel noise are n sequential draws without replacement
        rows = jax.lax.top_k(jnp.log(p) + jax.random.gumbel(key, p.shape), turn.size)[1]
        return rows, (p.size * p[rows]) ** -self.beta


def compute_segment_probabilities(
    advantage: Float[Array, "segments steps"], alpha: Array | float
) -> Float[Array, " segments"]:
    """Return the probability that each segment is drawn first; it is lowest if its advantages are not finite."""
    size = jnp.abs(advantage).sum(1)
    w = jnp.where(jnp.isfinite(size), size, 0) ** alpha + MIN_PRIORITY
    return w / w.sum()
