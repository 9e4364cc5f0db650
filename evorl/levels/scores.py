"""Scores: how much a level is worth playing, from what a student did there. NaN, which is none, where no episode ended.

Time-means of a number of each step are averaged over the ended episodes of a level (evorl.levels.episodes).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.levels import episodes
from evorl.types import Judged

NEEDS = {  # what not every student or environment gives, by the field of Outcome
    "values": "a student with several values, num_values",
    "solved": "an environment that tells which episodes were solved",
    "optimum": "an environment with optimal_return(level)",
}

LARGEST = np.finfo(np.float32).max
NEVER_SOLVED = "no return solves a level of {}; its solved_return says which one does"


def can_be_solved(env: Judged) -> bool:
    """Whether any return solves a level."""
    return bool(env.solved(jnp.float32(LARGEST)))


@struct.dataclass
class Outcome:
    """What a student did on levels, and what it thought of them, in the units of rewards; () is what is not known.

    Slots are levels * repeats, those of a level side by side. For a score that compares students the leaves of reward
    and ended lead with [students].
    """

    reward: Any  # [steps, slots]
    ended: Any  # [steps, slots] bool
    value: Any = ()  # [steps, slots], before learning
    advantage: Any = ()  # [steps, slots], not normalized
    best: Any = ()  # [levels], the highest return of the level's life before; -inf without one
    values: Any = ()  # [members, steps, slots], of an ensemble
    solved: Any = ()  # [steps, slots] bool, of the episode that ends here
    optimum: Any = ()  # [levels], the highest return that there can be
    repeats: int = struct.field(pytree_node=False, default=1)
    certain: int = struct.field(pytree_node=False, default=1)  # episodes that a slot ends, however long they are

    @property
    def mean_return(self) -> Float[Array, " levels"]:
        """Of the ended episodes of each level; NaN where there is none."""
        return episodes.mean_return(self.reward, self.ended, self.repeats)

    @property
    def returns(self) -> Float[Array, "steps slots"]:
        """Of each step's episode so far, which is whole where it ended."""
        return episodes.returns(self.reward, self.ended)

    @property
    def highest_return(self) -> Float[Array, " levels"]:
        """Of the ended episodes of each level; -inf where there is none."""
        return episodes.highest_return(self.reward, self.ended, self.repeats)

    @property
    def solve_rate(self) -> Float[Array, " levels"]:
        """The share of episodes that were solved; NaN where none ended.

        Of each slot the first `certain` count: of those after them the short ones end alone, which are the solved ones.
        """
        first = self.ended & (jnp.cumsum(self.ended, axis=0) <= self.certain)
        return episodes.rate(self.solved, first, self.repeats)

    def time_mean(self, x: Float[Array, "steps slots"]) -> Float[Array, " levels"]:
        """Of a number of each step."""
        return episodes.time_mean(x, self.ended, self.repeats)


@runtime_checkable
class Score(Protocol):
    """How much a level is worth playing."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields of Outcome beside reward and ended."""
        ...

    @property
    def signed(self) -> bool:
        """Whether it may be negative."""
        ...

    @property
    def students(self) -> int:
        """At least so many, which it compares if more than one."""
        ...

    @property
    def episodes(self) -> int:
        """At least so many of each level, as it is the same for all levels with fewer."""
        ...

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        """The score of each level; NaN where no episode ended, or that of one student did not."""
        ...


def check_score(
    score: Score, prioritization: str, gives: Collection[str], num_students: int = 1, num_episodes: int = 1
) -> None:
    """Refuse a score that cannot be had, cannot be weighed, or is the same for every level.

    Args:
        score: Of levels.
        prioritization: By what levels are replayed, `rank` or `proportional`.
        gives: The fields of Outcome beside reward and ended that there are.
        num_students: Who play each level.
        num_episodes: Episodes of each level and student that end, however long they are.

    Raises:
        OptionError: That names the score and what it needs.
    """
    name = type(score).__name__
    for need in score.needs:
        if need not in gives:
            raise OptionError(f"score={name}: needs {NEEDS.get(need, need)}")
    require(num_students >= score.students, "num_students", num_students, f"{name} compares at least {score.students}")
    if num_episodes < score.episodes:
        same = f"is the same for every level unless {score.episodes} episodes of each are sure to end"
        more = "play each in more slots (repeats, episodes) or for more steps (num_steps)"
        raise OptionError(f"score={name}: {same}, not {num_episodes}; {more}")
    positive = prioritization != "proportional" or not score.signed
    require(positive, "prioritization", prioritization, f"{name} may be negative, which has a rank but no proportion")


@dataclass(frozen=True)
class MaxMC:
    """R - V of each step, R the highest return over the level's life (Jiang et al. 2021, arXiv:2110.02439)."""

    needs = ("value", "best")
    signed = True
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return jnp.maximum(outcome.best, outcome.highest_return) - outcome.time_mean(outcome.value)


@dataclass(frozen=True)
class PositiveValueLoss:
    """max(A, 0) of each step (Jiang et al. 2021, arXiv:2110.02439)."""

    needs = ("advantage",)
    signed = False
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.time_mean(jnp.maximum(outcome.advantage, 0))


@dataclass(frozen=True)
class L1ValueLoss:
    """|A| of each step (Jiang et al. 2021, arXiv:2010.03934)."""

    needs = ("advantage",)
    signed = False
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.time_mean(jnp.abs(outcome.advantage))


@dataclass(frozen=True)
class ValueDisagreement:
    """The standard deviation, of n and not n - 1, of the values of an ensemble at each step."""

    needs = ("values",)
    signed = False
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.time_mean(outcome.values.std(0))


@dataclass(frozen=True)
class NegativeReturn:
    """Minus the mean return: the score of a minimax teacher."""

    needs = ()
    signed = True
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return -outcome.mean_return


@dataclass(frozen=True)
class Learnability:
    """q (1 - q), q the share of episodes that were solved (Rutherford et al. 2024, arXiv:2408.15099)."""

    needs = ("solved",)
    signed = False
    students = 1
    episodes = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.solve_rate * (1 - outcome.solve_rate)


@dataclass(frozen=True)
class TrueRegret:
    """What the mean return is below the optimum."""

    needs = ("optimum",)
    signed = False
    students = 1
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.optimum - outcome.mean_return


@dataclass(frozen=True)
class RelativeRegret:
    """max(0, highest return of the others - mean return of student 0) (Dennis et al. 2020, arXiv:2012.02096)."""

    needs = ()
    signed = False
    students = 2
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, highest = _of_students(outcome)
        none = jnp.isneginf(highest[1:]).any(0)
        return jnp.where(none, jnp.nan, jnp.maximum(highest[1:].max(0) - means[0], 0))


@dataclass(frozen=True)
class PopulationRegret:
    """The highest minus the mean of the students' mean returns."""

    needs = ()
    signed = False
    students = 2
    episodes = 1

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, _ = _of_students(outcome)
        return means.max(0) - means.mean(0)


def _of_students(outcome: Outcome) -> tuple[Float[Array, "students levels"], Float[Array, "students levels"]]:
    """Their mean and their highest returns."""

    def one(reward: Array, ended: Array) -> tuple[Array, Array]:
        student = Outcome(reward, ended, repeats=outcome.repeats)
        return student.mean_return, student.highest_return

    return jax.vmap(one)(outcome.reward, outcome.ended)
