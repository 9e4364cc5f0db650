"""What curricula share: a student that is examined on drawn levels, and what it did on those of an iteration."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.types import (
    Agent,
    Batch,
    EnsembleValueAgent,
    HasOptimalReturn,
    Key,
    Level,
    LevelEnv,
    Metrics,
    SolvableLevelEnv,
    Transition,
)
from evorl.ued.scores import UNSOLVABLE_MESSAGE, Outcome, Score, can_be_solved, check_score
from evorl.vector_env import LevelStarts, Rollout, RolloutPlan, require_level_env
from evorl.workflows.base import BaseStagedWorkflow
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


class BaseCurriculum(BaseStagedWorkflow):
    """What curricula of one student share; `full_student` is the student as its rollouts have it."""

    student: OnPolicy

    @property
    def full_student(self) -> OnPolicy:
        """The student with environments for all that an iteration plays."""
        return self.student

    @property
    def env(self) -> LevelEnv:
        """That of the student."""
        return require_level_env(self.student.env)

    @property
    def agent(self) -> Agent:
        """That of the student."""
        return self.student.agent

    def count_env_steps(self, state: Any) -> Array:
        return self.full_student.count_env_steps(state.student)

    def student_state(self, state: Any) -> OnPolicyState:
        """Return the state of the student as its own workflow has it."""
        return restore_shared_fields(state.student, state)

    def plan_evaluation(self, state: Any, key: Key) -> RolloutPlan:
        """Plan whole episodes, greedily, each on a level that the environment draws."""
        return plan_evaluation(self.full_student, self.student_state(state), key)

    def rollout(self, state: Any, plan: RolloutPlan, key: Key) -> tuple[Any, Rollout]:
        """Play what the plan says; the state of the student holds what it needs after that."""
        return state, self.full_student.rollout(self.student_state(state), plan, key)[1]


def check_student(student: OnPolicy) -> None:
    """Raises OptionError where it has no levels, or a rollout may hold no episode of one."""
    longest = require_level_env(student.env).max_episode_steps
    hidden = f"must be at least the steps of an episode, {longest}: a level that no episode ends on has no score"
    require(student.num_steps >= longest, "num_steps", student.num_steps, hidden)


def list_outcome_fields(agent: Agent) -> tuple[str, ...]:
    """The fields of an Outcome that a student gives whose batches are there."""
    several = isinstance(agent, EnsembleValueAgent) and agent.num_values > 1
    return ("value", "advantage", "best", *(["values"] if several else []))


def make_level_starts(levels: Level, repeats: int) -> LevelStarts:
    """Return starts on levels, leaves [levels, ...]: `repeats` environments side by side play each again and again."""
    return LevelStarts(jax.tree.map(lambda x: jnp.repeat(x, repeats, axis=0)[None], levels))


def count_guaranteed_episodes(student: OnPolicy) -> int:
    """Return how many episodes an environment ends in a rollout that begins with one, however long they are."""
    return student.num_steps // student.env.max_episode_steps


def check_curriculum_score(
    score: Score,
    env: LevelEnv,
    num_episodes: int,
    prioritization: str = "rank",
    num_students: int = 1,
    more: tuple[str, ...] = (),
) -> None:
    """Refuse a score that cannot be had from num_students who give `more` beside what env tells, as check_score."""
    if "solved" in score.outcome_fields and isinstance(env, SolvableLevelEnv) and not can_be_solved(env):
        raise OptionError(f"score={type(score).__name__}: {UNSOLVABLE_MESSAGE.format(type(env).__name__)}")
    known = {"solved": isinstance(env, SolvableLevelEnv), "optimum": isinstance(env, HasOptimalReturn)}
    gives = (*more, *(name for name, there in known.items() if there))
    check_score(score, prioritization, gives, num_students, num_episodes)


def restore_shared_fields(student: OnPolicyState, state: Any) -> OnPolicyState:
    """The student that a curriculum's state holds as its own workflow has it."""
    return replace(student, numbers=state.numbers.get("student", {}), env_params=state.env_params)


def sample_levels(env: LevelEnv, key: Key, env_params: Any, *shape: int) -> Level:
    """Levels as the environment draws them, leaves [*shape, ...]."""
    sample = env.sample_level
    for _ in shape:
        sample = jax.vmap(sample, (0, None))
    return sample(jax.random.split(key, shape), env_params)


def plan_evaluation(student: OnPolicy, state: OnPolicyState, key: Key) -> RolloutPlan:
    """Whole episodes, greedily, each on a level that the environment draws."""
    key_levels, key_exam = jax.random.split(key)
    most = student.vector_env.max_starts
    levels = sample_levels(require_level_env(student.env), key_levels, state.env_params, most, student.num_envs)
    return replace(student.plan_evaluation(state, key_exam), starts=LevelStarts(levels, jnp.int32(most)))


def compute_outcome(
    student: OnPolicy,
    state: OnPolicyState,
    rollout: Transition,
    batch: Batch,
    levels: Level,
    best: Float[Array, " levels"],
) -> Outcome:
    """Return what a student did on levels, leaves [levels, ...]; best are their highest returns before.

    All levels have as many environments. A level with a step that does not count has no score: its rewards and
    advantages are NaN there.
    """
    value, repeats = batch.value * student.value_scale(state), rollout.reward.shape[1] // len(best)
    reward, advantage = (jnp.where(rollout.weight > 0, x, jnp.nan) for x in (rollout.reward, batch.advantage))
    seen = Outcome(
        reward,
        rollout.is_done,
        value,
        advantage,
        best,
        repeats=repeats,
        guaranteed_episodes=count_guaranteed_episodes(student),
    )
    if batch.ensemble_values is not None:
        seen = replace(seen, values=jnp.moveaxis(batch.ensemble_values, -1, 0) * student.value_scale(state))
    return judge_outcome(require_level_env(student.env), seen, levels)


def judge_outcome(env: LevelEnv, outcome: Outcome, levels: Level) -> Outcome:
    """The outcome with what the environment tells of it and of its levels, leaves [levels, ...]."""
    if isinstance(env, SolvableLevelEnv):
        outcome = replace(outcome, solved=env.is_solved(outcome.running_returns))
    if isinstance(env, HasOptimalReturn):
        outcome = replace(outcome, optimum=jax.vmap(env.optimal_return)(levels))
    return outcome


def summarize_levels(outcome: Outcome, score: Float[Array, " levels"]) -> Metrics:
    """Means over the levels that have a score, however many episodes each saw."""
    scored = jnp.isfinite(score)

    def mean_over_levels(x: Float[Array, " levels"]) -> Float[Array, ""]:
        return jnp.where(scored, x, 0).sum() / jnp.maximum(scored.sum(), 1)

    metrics = {"levels/score": mean_over_levels(score), "levels/return": mean_over_levels(outcome.mean_return)}
    if outcome.solved is not None:
        metrics["levels/solved"] = mean_over_levels(outcome.solve_rate)
    return metrics
