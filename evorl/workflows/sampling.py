"""Which segments of a rollout a minibatch takes."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evorl.errors import OptionError, require
from evorl.types import HasPriorityExponents, Hyperparams, Key

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

    def check(self, hyperparams: Hyperparams) -> None:
        """Raises OptionError where hyperparameters lack what it draws by."""
        ...

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"], hyperparams: Hyperparams
    ) -> tuple[Int[Array, " n"], Any]:
        """Which n segments, and what each weighs, [n], or () where all weigh alike.

        `turn` are the next n of a random order of all.
        """
        ...


@dataclass(frozen=True)
class Shuffled:
    """Every segment once in a pass, in random order."""

    length: int = 0

    def __post_init__(self) -> None:
        require(self.length >= 0, "sampling.length", self.length, "must not be negative")

    def check(self, hyperparams: Hyperparams) -> None:
        del hyperparams

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"], hyperparams: Hyperparams
    ) -> tuple[Int[Array, " n"], tuple[()]]:
        del key, advantage, hyperparams
        return turn, ()


SHUFFLED = Shuffled()


@dataclass(frozen=True)
class PrioritizedSegments:
    """Segments by the size of their advantages, none twice in a minibatch (PufferLib 3.0.0).

    With w = (sum over its steps of |A|)^priority_alpha one of S segments is drawn with probability p = (w + 1e-6) over
    the sum of all, and its normalized advantages weigh (S p)^-priority_beta.
    """

    length: int = 0

    def __post_init__(self) -> None:
        require(self.length >= 0, "sampling.length", self.length, "must not be negative")

    def check(self, hyperparams: Hyperparams) -> None:
        if not isinstance(hyperparams, HasPriorityExponents):
            given = type(hyperparams).__name__
            raise OptionError(f"sampling=PrioritizedSegments: needs priority_alpha and priority_beta; {given} has none")

    def sample(
        self, key: Key, turn: Int[Array, " n"], advantage: Float[Array, "segments steps"], hyperparams: Hyperparams
    ) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        p = compute_segment_probabilities(advantage, hyperparams.priority_alpha)
        # the n largest of log p + Gumbel noise are drawn one after another without replacement
        rows = jax.lax.top_k(jnp.log(p) + jax.random.gumbel(key, p.shape), turn.size)[1]
        return rows, (p.size * p[rows]) ** -hyperparams.priority_beta


def compute_segment_probabilities(
    advantage: Float[Array, "segments steps"], alpha: Array | float
) -> Float[Array, " segments"]:
    """By which each segment is drawn first; where its advantages are lost, the least."""
    size = jnp.abs(advantage).sum(1)
    w = jnp.where(jnp.isfinite(size), size, 0) ** alpha + MIN_PRIORITY
    return w / w.sum()
