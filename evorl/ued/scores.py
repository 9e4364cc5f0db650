"""Scores, which measure how useful it is to train on a level. A score is NaN if no episode ended on the level.

The time mean of a quantity is its mean over the steps of an episode, averaged over the completed episodes of
a level (`evorl.ued.episodes`).
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

FIELD_REQUIREMENTS = {  # what provides the fields of Outcome that are not always available
    "values": "a student with several value functions, num_values",
    "solved": "an environment that reports solved episodes (evorl.types.SolvableLevelEnv)",
    "optimum": "an environment with optimal_return(level)",
}

MAX_FLOAT = np.finfo(np.float32).max
UNSOLVABLE_MESSAGE = "no return solves a level of {}; set its solved_return"


def can_be_solved(env: SolvableLevelEnv) -> bool:
    """Return whether there is a return that solves a level."""
    return bool(env.is_solved(jnp.float32(MAX_FLOAT)))


@struct.dataclass
class Outcome:
    """Outcome of a student on levels, in units of the rewards. A field is None if it is not known.

    There are levels * repeats environments, and those of a level are consecutive. For a score that compares
    students, reward and ended have a leading axis [students].

    Args:
        reward: Rewards, shape [*students, steps, envs].
        ended: Whether an episode ended at the step, shape [*students, steps, envs].
        value: Value estimates before learning, shape [steps, envs].
        advantage: Advantages, not standardized, shape [steps, envs].
        best: Highest return on each level before this rollout, shape [levels]; -inf if there was none.
        values: Value estimates of an ensemble, shape [members, steps, envs].
        solved: Whether the episode that ends at the step was solved, shape [steps, envs].
        optimum: Optimal return of each level, shape [levels].
        repeats: Number of environments per level.
        guaranteed_episodes: Number of episodes that every environment completes, however long they are.
    """

    reward: Float[Array, "*students steps envs"]
    ended: Bool[Array, "*students steps envs"]
    value: Float[Array, "steps envs"] | None = None
    advantage: Float[Array, "steps envs"] | None = None
    best: Float[Array, " levels"] | None = None
    values: Float[Array, "members steps envs"] | None = None
    solved: Bool[Array, "steps envs"] | None = None
    optimum: Float[Array, " levels"] | None = None
    repeats: int = struct.field(pytree_node=False, default=1)
    guaranteed_episodes: int = struct.field(pytree_node=False, default=1)

    @property
    def mean_return(self) -> Float[Array, " levels"]:
        """Return the mean return of the completed episodes of each level; NaN if there is none."""
        return episodes.mean_return(self.reward, self.ended, self.repeats)

    @property
    def running_returns(self) -> Float[Array, "steps envs"]:
        """Return the return of each step's episode so far; it is complete at the last step of the episode."""
        return episodes.running_returns(self.reward, self.ended)

    @property
    def highest_return(self) -> Float[Array, " levels"]:
        """Return the highest return of the completed episodes of each level; -inf if there is none."""
        return episodes.highest_return(self.reward, self.ended, self.repeats)

    @property
    def solve_rate(self) -> Float[Array, " levels"]:
        """Return the fraction of the episodes of each level that were solved; NaN if none ended or a step was lost.

        Only the first `guaranteed_episodes` episodes of each environment count. Among later ones, only
        short episodes end within the rollout, and these are the solved ones.
        """
        assert self.solved is not None
        first = self.ended & (jnp.cumsum(self.ended, axis=0) <= self.guaranteed_episodes)
        lost = jnp.isnan(self.reward).any(0).reshape(-1, self.repeats).any(1)
        return jnp.where(lost, jnp.nan, episodes.event_rate(self.solved, first, self.repeats))

    def time_mean(self, x: Float[Array, "steps envs"]) -> Float[Array, " levels"]:
        """Return the time mean of a quantity on each level, shape [levels].

        Args:
            x: Quantity at each step, shape [steps, envs].
        """
        return episodes.time_mean(x, self.ended, self.repeats)


@runtime_checkable
class Score(Protocol):
    """Protocol of a score, which measures how useful it is to train on a level."""

    @property
    def outcome_fields(self) -> tuple[str, ...]:
        """Return the fields of Outcome that the score needs in addition to reward and ended."""
        ...

    @property
    def signed(self) -> bool:
        """Return whether the score can be negative."""
        ...

    @property
    def min_students(self) -> int:
        """Return the minimum number of students; a score that needs more than one compares them."""
        ...

    @property
    def min_episodes(self) -> int:
        """Return the minimum number of episodes on each level; with fewer, the score is the same for all levels."""
        ...

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        """Return the score of each level, shape [levels].

        Args:
            outcome: Outcome of one or several students on the levels.

        Returns:
            Scores; NaN for a level on which no episode ended, or on which a student completed none.
        """
        ...


def check_score(
    score: Score, prioritization: str, gives: Collection[str], num_students: int = 1, num_episodes: int = 1
) -> None:
    """Raise an error if a score cannot be computed or weighted, or if it is the same for every level.

    Args:
        score: Score of levels.
        prioritization: How levels are replayed: by "rank", or "proportional" to the score.
        gives: Fields of Outcome that are available in addition to reward and ended.
        num_students: Number of students that play each level.
        num_episodes: Number of episodes of each level and student that are certain to end, however long they
            are.

    Raises:
        OptionError: If one of these is the case; the message names the score and what it needs.
    """
    name = type(score).__name__
    for need in score.outcome_fields:
        if need not in gives:
            raise OptionError(f"score={name}: needs {FIELD_REQUIREMENTS.get(need, need)}")
    require(
        num_students >= score.min_students,
        "num_students",
        num_students,
        f"{name} needs at least {score.min_students}",
    )
    if num_episodes < score.min_episodes:
        same = f"needs at least {score.min_episodes} complete episodes per level"
        more = "use more environments per level (repeats, episodes) or more steps (num_steps)"
        raise OptionError(f"score={name}: {same}, not {num_episodes}; {more}")
    positive = prioritization != "proportional" or not score.signed
    require(positive, "prioritization", prioritization, f"must be rank, because {name} can be negative")


class BaseScore:
    """Base class of scores: by default computed from rewards and episode ends of one student, and never negative.

    Attributes:
        outcome_fields: Fields of Outcome that the score needs in addition to reward and ended.
        signed: Whether the score can be negative.
        min_students: Minimum number of students, which are compared if there are several.
        min_episodes: Minimum number of episodes on each level; with fewer, the score is the same for all
            levels.
    """

    outcome_fields: tuple[str, ...] = ()
    signed = False
    min_students = 1
    min_episodes = 1


@dataclass(frozen=True)
class MaxMC(BaseScore):
    """MaxMC score: time mean of R - V, with value V and the highest return R on the level so far.

    Source: Jiang et al. 2021, arXiv:2110.02439.
    """

    outcome_fields = ("value", "best")
    signed = True

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.best is not None
        assert outcome.value is not None
        return jnp.maximum(outcome.best, outcome.highest_return) - outcome.time_mean(outcome.value)


@dataclass(frozen=True)
class PositiveValueLoss(BaseScore):
    """Positive value loss: time mean of max(A, 0), with advantage A.

    Source: Jiang et al. 2021, arXiv:2110.02439.
    """

    outcome_fields = ("advantage",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.advantage is not None
        return outcome.time_mean(jnp.maximum(outcome.advantage, 0))


@dataclass(frozen=True)
class L1ValueLoss(BaseScore):
    """L1 value loss: time mean of |A|, with advantage A.

    Source: Jiang et al. 2021, arXiv:2010.03934.
    """

    outcome_fields = ("advantage",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.advantage is not None
        return outcome.time_mean(jnp.abs(outcome.advantage))


@dataclass(frozen=True)
class ValueDisagreement(BaseScore):
    """Disagreement of a value ensemble: time mean of the standard deviation of its values, with divisor n."""

    outcome_fields = ("values",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.values is not None
        return outcome.time_mean(outcome.values.std(0))


@dataclass(frozen=True)
class NegativeReturn(BaseScore):
    """Negative mean return, which is the score of a minimax teacher."""

    signed = True

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return -outcome.mean_return


@dataclass(frozen=True)
class Learnability(BaseScore):
    """Learnability: q (1 - q), with q the fraction of the episodes that were solved.

    Source: Rutherford et al. 2024, arXiv:2408.15099.
    """

    outcome_fields = ("solved",)
    min_episodes = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        return outcome.solve_rate * (1 - outcome.solve_rate)


@dataclass(frozen=True)
class TrueRegret(BaseScore):
    """True regret: optimal return minus mean return."""

    outcome_fields = ("optimum",)

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        assert outcome.optimum is not None
        return outcome.optimum - outcome.mean_return


@dataclass(frozen=True)
class RelativeRegret(BaseScore):
    """Relative regret: max(0, highest return of the other students - mean return of student 0).

    Source: Dennis et al. 2020, arXiv:2012.02096.
    """

    min_students = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, highest = _returns_by_student(outcome)
        none = jnp.isneginf(highest[1:]).any(0)
        return jnp.where(none, jnp.nan, jnp.maximum(highest[1:].max(0) - means[0], 0))


@dataclass(frozen=True)
class PopulationRegret(BaseScore):
    """Population regret: highest minus average of the students' mean returns."""

    min_students = 2

    def __call__(self, outcome: Outcome) -> Float[Array, " levels"]:
        means, _ = _returns_by_student(outcome)
        return means.max(0) - means.mean(0)


def _returns_by_student(outcome: Outcome) -> tuple[Float[Array, "students levels"], Float[Array, "students levels"]]:
    """Return the mean returns and the highest returns of each student, [students, levels]."""

    def compute_returns(reward: Array, ended: Array) -> tuple[Array, Array]:
        student = Outcome(reward, ended, repeats=outcome.repeats)
        return student.mean_return, student.highest_return

    return jax.vmap(compute_returns)(outcome.reward, outcome.ended)
