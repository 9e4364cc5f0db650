"""Functions that curricula share: evaluation on sampled levels, and the outcome of a student on given levels."""

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
    PolicyFn,
    SolvableLevelEnv,
    Transition,
)
from evorl.ued.scores import UNSOLVABLE_MESSAGE, Outcome, Score, can_be_solved, check_score
from evorl.vector_env import LevelStarts, Rollout, RolloutPlan, require_level_env
from evorl.workflows.base import BaseStagedWorkflow, drop_shared_fields
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


class BaseCurriculum(BaseStagedWorkflow):
    """Base class of curricula with one student; `full_student` is the student that runs the rollouts."""

    student: OnPolicy

    @property
    def full_student(self) -> OnPolicy:
        """Return the student with environments for all levels of an iteration."""
        return self.student

    @property
    def env(self) -> LevelEnv:
        """Return the environment of the student."""
        return require_level_env(self.student.env)

    @property
    def agent(self) -> Agent:
        """Return the agent of the student."""
        return self.student.agent

    def count_env_steps(self, state: Any) -> Array:
        return self.full_student.count_env_steps(state.student)

    def student_state(self, state: Any) -> OnPolicyState:
        """Return the state of the student, in the form that its own workflow has it."""
        return restore_shared_fields(state.student, state)

    def plan_evaluation(self, state: Any, key: Key) -> RolloutPlan:
        """Plan greedy episodes, each on a level that the environment samples."""
        return plan_evaluation(self.full_student, self.student_state(state), key)

    def rollout(self, state: Any, plan: RolloutPlan, key: Key) -> tuple[Any, Rollout]:
        """Run the plan with the student; the state stays unchanged."""
        return state, self.full_student.rollout(self.student_state(state), plan, key)[1]

    def policy(self, state: Any, explores: bool = False) -> PolicyFn:
        """Return the policy of the student."""
        return self.full_student.policy(self.student_state(state), explores)

    def inherit(self, state: Any, parent: Any) -> Any:
        """Return the state of the parent, including its curriculum, with the environments of the inheriting state."""
        student = self.full_student.inherit(self.student_state(state), self.student_state(parent))
        return replace(parent, student=drop_shared_fields(student), env_params=state.env_params)


def check_student(student: OnPolicy) -> None:
    """Raise OptionError if the environment has no levels, or if a rollout may contain no complete episode."""
    longest = require_level_env(student.env).max_episode_steps
    hidden = f"must be at least max_episode_steps, {longest}: only a complete episode gives a score"
    require(student.num_steps >= longest, "num_steps", student.num_steps, hidden)


def list_outcome_fields(agent: Agent) -> tuple[str, ...]:
    """Return the fields of Outcome that a student provides if its batches are known."""
    several = isinstance(agent, EnsembleValueAgent) and agent.num_values > 1
    return ("value", "advantage", "best", *(["values"] if several else []))


def make_level_starts(levels: Level, repeats: int) -> LevelStarts:
    """Return starts on levels, leaves [levels, ...]; `repeats` consecutive environments play each level repeatedly."""
    return LevelStarts(jax.tree.map(lambda x: jnp.repeat(x, repeats, axis=0)[None], levels))


def count_guaranteed_episodes(student: OnPolicy) -> int:
    """Return how many episodes an environment completes in a rollout that starts with one, however long they are."""
    return student.num_steps // student.env.max_episode_steps


def check_curriculum_score(
    score: Score,
    env: LevelEnv,
    num_episodes: int,
    prioritization: str = "rank",
    num_students: int = 1,
    more: tuple[str, ...] = (),
) -> None:
    """Raise OptionError if students and environment do not provide what a score needs (see `check_score`).

    `more` are the fields of Outcome that the students provide, in addition to those of the environment.
    """
    if "solved" in score.outcome_fields and isinstance(env, SolvableLevelEnv) and not can_be_solved(env):
        raise OptionError(f"score={type(score).__name__}: {UNSOLVABLE_MESSAGE.format(type(env).__name__)}")
    known = {"solved": isinstance(env, SolvableLevelEnv), "optimum": isinstance(env, HasOptimalReturn)}
    gives = (*more, *(name for name, there in known.items() if there))
    check_score(score, prioritization, gives, num_students, num_episodes)


def restore_shared_fields(student: OnPolicyState, state: Any) -> OnPolicyState:
    """Return the state of a student with the numbers and the env_params of the curriculum's state."""
    return replace(student, numbers=state.numbers.get("student", {}), env_params=state.env_params)


def sample_levels(env: LevelEnv, key: Key, env_params: Any, *shape: int) -> Level:
    """Sample levels from the distribution of the environment, leaves [*shape, ...]."""
    sample = env.sample_level
    for _ in shape:
        sample = jax.vmap(sample, (0, None))
    return sample(jax.random.split(key, shape), env_params)


def plan_evaluation(student: OnPolicy, state: OnPolicyState, key: Key) -> RolloutPlan:
    """Plan greedy episodes, each on a level that the environment samples."""
    key_levels, key_plan = jax.random.split(key)
    most = student.vector_env.max_starts
    levels = sample_levels(require_level_env(student.env), key_levels, state.env_params, most, student.num_envs)
    return replace(student.plan_evaluation(state, key_plan), starts=LevelStarts(levels, jnp.int32(most)))


def compute_outcome(
    student: OnPolicy,
    state: OnPolicyState,
    rollout: Transition,
    batch: Batch,
    levels: Level,
    best: Float[Array, " levels"],
) -> Outcome:
    """Return the outcome of a student on levels, leaves [levels, ...], whose highest returns so far are `best`.

    All levels have the same number of environments. A step that does not count has reward and advantage NaN,
    so that its level has no score.
    """
    unit = 1 / jnp.maximum(getattr(student.agent, "reward_scale", 1.0), jnp.finfo(jnp.float32).tiny)
    scale = student.value_scale(state) * unit  # values and advantages are those of scaled rewards
    reward, advantage = (jnp.where(rollout.weight > 0, x, jnp.nan) for x in (rollout.reward, batch.advantage * unit))
    seen = Outcome(
        reward,
        rollout.is_done,
        batch.value * scale,
        advantage,
        best,
        repeats=rollout.reward.shape[1] // len(best),
        guaranteed_episodes=count_guaranteed_episodes(student),
    )
    if batch.ensemble_values is not None:
        seen = replace(seen, values=jnp.moveaxis(batch.ensemble_values, -1, 0) * scale)
    return judge_outcome(require_level_env(student.env), seen, levels)


def judge_outcome(env: LevelEnv, outcome: Outcome, levels: Level) -> Outcome:
    """Add what the environment knows to an outcome: which episodes were solved, and the levels' optimal returns."""
    if isinstance(env, SolvableLevelEnv):
        outcome = replace(outcome, solved=env.is_solved(outcome.running_returns))
    if isinstance(env, HasOptimalReturn):
        outcome = replace(outcome, optimum=jax.vmap(env.optimal_return)(levels))
    return outcome


def summarize_levels(outcome: Outcome, score: Float[Array, " levels"]) -> Metrics:
    """Return means over the levels that have a score. Each level counts once, however many episodes it had."""
    scored = jnp.isfinite(score)

    def mean_over_levels(x: Float[Array, " levels"]) -> Float[Array, ""]:
        return jnp.where(scored, x, 0).sum() / jnp.maximum(scored.sum(), 1)

    metrics = {"levels/score": mean_over_levels(score), "levels/return": mean_over_levels(outcome.mean_return)}
    if outcome.solved is not None:
        metrics["levels/solved"] = mean_over_levels(outcome.solve_rate)
    return metrics
