"""Scores: how much a level is worth playing, from what a student did there. NaN, which is none, where no episode ended.

Time-means of a number of each step are averaged over the ended episodes of a level (evorl.ued.episodes).
"""

from collections.abc import Collection
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import OptionError, require
from evorl.types import SolvableLevelEnv
from evorl.ued import episodes

FIELD_REQUIREMENTS = {  # what not every student or environment gives, by the field of Outcome
    "values": "a student with several values, num_values",
    "solved": "an environment that tells which episodes were solved",
    "optimum": "an environment with optimal_return(level)",
}

MAX_FLOAT = np.finfo(np.float32).max
UNSOLVABLE_MESSAGE = "no return solves a level of {}; its solved_return says which one does"


def can_be_solved(env: SolvableLevelEnv) -> bool:
    """Whether any return solves a level."""
    return bool(env.is_solved(jnp.float32(MAX_FLOAT)))


@struct.dataclass
class Outcome:
    """What a student did on levels, and what it thought of them, in the units of rewards; None is what is not known.

    There are levels * repeats environments, those of a level side by side. For a score that compares students the
    leaves of reward and ended lead with [students].
    """

    reward: Float[Array, "*students steps envs"]
    ended: Bool[Array, "*students steps envs"]
    value: Float[Array, "steps envs"] | None = None  # before learning
    advantage: Float[Array, "steps envs"] | None = None  # not normalized
    best: Float[Array, " levels"] | None = None  # the highest return of the level's life before; -inf without one
    values: Float[Array, "members steps envs"] | None = None  # of an ensemble
    solved: Bool[Array, "steps envs"] | None = None  # of the episode that ends here
    optimum: Float[Array, " levels"] | None = None  # the highest return that there can be
    repeats: int = struct.field(pytree_node=False, default=1)
    guaranteed_episodes: int = struct.field(
        pytree_node=False, default=1
    )  # episodes that an environment ends, however long they are

    @property
    def mean_return(self) -> Float[Array, " levels"]:
        """Of the ended episodes of each level; NaN where there is none."""
        return episodes.mean_return(self.reward, self.ended, self.repeats)

    @property
    def running_returns(self) -> Float[Array, "steps envs"]:
        """Of each step's episode so far, which is whole where it ended."""
        return episodes.running_returns(self.reward, self.ended)

    @property
    def highest_return(self) -> Float[Array, " levels"]:
        """Of the ended episodes of each level; -inf where there is none."""
        return episodes.highest_return(self.reward, self.ended, self.repeats)

    @property
    def solve_rate(self) -> Float[Array, " levels"]:
        """The share of episodes that were solved; NaN where none ended.

        Of each environment the first `guaranteed_episodes` count: of those after them the short ones end alone,
        which are the solved ones.
        """
        assert self.solved is not None
        first = self.ended & (jnp.cumsum(self.ended, axis=0) <= self.guaranteed_episodes)
        return episodes.event_rate(self.solved, first, self.repeats)

    def time_mean(self, x: Float[Array, "steps envs"]) -> Float[Array, " levels"]:
        """Of a number of each step."""
        return episodes.time_mean(x, self.ended, self.repeats)


@runtime_checkable
class Score(Protocol):
    """How much a level is worth playing."""

    @property
    def outcome_fields(self) -> tuple[str, ...]:
        """Fields of Outcome beside reward and ended."""
        ...

    @property
    def signed(self) -> bool:
        """Whether it may be negative."""
        ...

    @property
    def min_students(self) -> int:
        """At least so many, which it compares if more than one."""
        ...

    @property
    def min_episodes(self) -> int:
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
    for need in score.outcome_fields:
        if need not in gives:
            raise OptionError(f"score={name}: needs {FIELD_REQUIREMENTS.get(need, need)}")
    require(
        num_students >= score.min_students,
        "num_students",
        num_students,
        f"{name} compares at least {score.min_students}",
    )
    if num_episodes < score.min_episodes:
        same = f"is the same for every level unless {score.min_episodes} episodes of each are sure to end"
        more = "play each in more environments (repeats, episodes) or for more steps (num_steps)"
        raise OptionError(f"score={name}: {same}, not {num_episodes}; {more}")
    positive = prioritization != "proportional" or not score.signed
    require(positive, "prioritization", prioritization, f"{name} may be negative, which has a rank but no proportion")


class BaseScore:
    """The defaults of a score: of rewards and ends alone, never negative, of one student and one episode."""

    outcome_fields: tuple[str, ...] = ()
    signed = False
    min_students = 1
    min_episodes = 1


@dataclass(frozen=True)
class MaxMC(BaseScore):
    """R - V of each step, R the highest return over the level's life (Jiang et al. 2021, arXiv:2110.02439)."""

    outcome_fields = ("value", "best")
    signed = True

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.best is not None
        assert outcome.value is not None
        return jnp.maximum(outcome.best, outcome.highest_return) - outcome.time_mean(outcome.value)


@dataclass(frozen=True)
class PositiveValueLoss(BaseScore):
    """max(A, 0) of each step (Jiang et al. 2021, arXiv:2110.02439)."""

    outcome_fields = ("advantage",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.advantage is not None
        return outcome.time_mean(jnp.maximum(outcome.advantage, 0))


@dataclass(frozen=True)
class L1ValueLoss(BaseScore):
    """|A| of each step (Jiang et al. 2021, arXiv:2010.03934)."""

    outcome_fields = ("advantage",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.advantage is not None
        return outcome.time_mean(jnp.abs(outcome.advantage))


@dataclass(frozen=True)
class ValueDisagreement(BaseScore):
    """The standard deviation, of n and not n - 1, of the values of an ensemble at each step."""

    outcome_fields = ("values",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.values is not None
        return outcome.time_mean(outcome.values.std(0))


@dataclass(frozen=True)
class NegativeReturn(BaseScore):
    """Minus the mean return: the score of a minimax teacher."""

    signed = True

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return -outcome.mean_return


@dataclass(frozen=True)
class Learnability(BaseScore):
    """q (1 - q), q the share of episodes that were solved (Rutherford et al. 2024, arXiv:2408.15099)."""

    outcome_fields = ("solved",)
    min_episodes = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.solve_rate * (1 - outcome.solve_rate)


@dataclass(frozen=True)
class TrueRegret(BaseScore):
    """What the mean return is below the optimum."""

    outcome_fields = ("optimum",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.optimum is not None
        return outcome.optimum - outcome.mean_return


@dataclass(frozen=True)
class RelativeRegret(BaseScore):
    """max(0, highest return of the others - mean return of student 0) (Dennis et al. 2020, arXiv:2012.02096)."""

    min_students = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, highest = _returns_by_student(outcome)
        none = jnp.isneginf(highest[1:]).any(0)
        return jnp.where(none, jnp.nan, jnp.maximum(highest[1:].max(0) - means[0], 0))


@dataclass(frozen=True)
class PopulationRegret(BaseScore):
    """The highest minus the mean of the students' mean returns."""

    min_students = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, _ = _returns_by_student(outcome)
        return means.max(0) - means.mean(0)


def _returns_by_student(outcome: Outcome) -> tuple[Float[Array, "students levels"], Float[Array, "students levels"]]:
    """Their mean and their highest returns."""

    def compute_returns(reward: Array, ended: Array) -> tuple[Array, Array]:
        student = Outcome(reward, ended, repeats=outcome.repeats)
        return student.mean_return, student.highest_return

    return jax.vmap(compute_returns)(outcome.reward, outcome.ended)
