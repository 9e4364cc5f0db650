"""What curricula share: a student that is examined on drawn levels, and what it did on those of an iteration."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.levels import NEVER_SOLVED, Outcome, Score, can_be_solved, check_score
from evorl.types import Agent, Batch, Disagrees, Judged, Key, KnowsOptimum, Level, Leveled, Metrics, Transition
from evorl.vector_env import OnLevels, Plan, leveled
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


def check_student(student: OnPolicy) -> None:
    """Raises OptionError where it has no levels, or a rollout may hold no episode of one."""
    longest = leveled(student.env).max_episode_steps
    hidden = f"must be at least the steps of an episode, {longest}: a level that no episode ends on has no score"
    require(student.num_steps >= longest, "num_steps", student.num_steps, hidden)


def of_student(agent: Agent) -> tuple[str, ...]:
    """The fields of an Outcome that a student gives whose batches are there."""
    several = isinstance(agent, Disagrees) and agent.num_values > 1
    return ("value", "advantage", "best", *(["values"] if several else []))


def in_slots(levels: Level, repeats: int) -> OnLevels:
    """Return starts on levels, leaves [levels, ...], each of which so many slots side by side play again and again."""
    return OnLevels(jax.tree.map(lambda x: jnp.repeat(x, repeats, axis=0)[None], levels))


def certain(student: OnPolicy) -> int:
    """Return how many episodes a slot ends in a rollout that begins with one, however long they are."""
    return student.num_steps // student.env.max_episode_steps


def check(
    score: Score,
    env: Leveled,
    num_episodes: int,
    prioritization: str = "rank",
    num_students: int = 1,
    more: tuple[str, ...] = (),
) -> None:
    """Refuse a score that cannot be had from num_students who give `more` beside what env tells, as check_score."""
    if "solved" in score.needs and isinstance(env, Judged) and not can_be_solved(env):
        raise OptionError(f"score={type(score).__name__}: {NEVER_SOLVED.format(type(env).__name__)}")
    known = {"solved": isinstance(env, Judged), "optimum": isinstance(env, KnowsOptimum)}
    gives = (*more, *(name for name, there in known.items() if there))
    check_score(score, prioritization, gives, num_students, num_episodes)


def held(student: OnPolicyState) -> OnPolicyState:
    """The student as a curriculum's state holds it, which has its hyperparams and env_params."""
    return replace(student, hyperparams=(), env_params=())


def whole(student: OnPolicyState, state: Any) -> OnPolicyState:
    """The student that a curriculum's state holds as its own workflow has it."""
    return replace(student, hyperparams=state.hyperparams.student, env_params=state.env_params)


def drawn(env: Leveled, key: Key, env_params: Any, *shape: int) -> Level:
    """Levels as the environment draws them, leaves [*shape, ...]."""
    sample = env.sample
    for _ in shape:
        sample = jax.vmap(sample, (0, None))
    return sample(jax.random.split(key, shape), env_params)


def exam(student: OnPolicy, state: OnPolicyState, key: Key) -> Plan:
    """Whole episodes, greedily, each on a level that the environment draws."""
    key_levels, key_exam = jax.random.split(key)
    most = student.vector_env.most_starts
    levels = drawn(leveled(student.env), key_levels, state.env_params, most, student.num_envs)
    return replace(student.exam(state, key_exam), starts=OnLevels(levels, jnp.int32(most)))


def outcome(
    student: OnPolicy,
    state: OnPolicyState,
    rollout: Transition,
    batch: Batch,
    levels: Level,
    best: Float[Array, " levels"],
) -> Outcome:
    """Return what a student did on levels, leaves [levels, ...]; best are their highest returns before.

    All levels have as many slots. A level with a step that does not count has no score: its rewards and advantages
    are NaN there.
    """
    value, repeats = batch.value * student.value_scale(state), rollout.reward.shape[1] // len(best)
    reward, advantage = (jnp.where(rollout.weight > 0, x, jnp.nan) for x in (rollout.reward, batch.advantage))
    seen = Outcome(reward, rollout.ended, value, advantage, best, repeats=repeats, certain=certain(student))
    if not isinstance(batch.values, tuple):
        seen = replace(seen, values=jnp.moveaxis(batch.values, -1, 0) * student.value_scale(state))
    return told(leveled(student.env), seen, levels)


def told(env: Leveled, outcome: Outcome, levels: Level) -> Outcome:
    """The outcome with what the environment tells of it and of its levels, leaves [levels, ...]."""
    if isinstance(env, Judged):
        outcome = replace(outcome, solved=env.solved(outcome.returns))
    if isinstance(env, KnowsOptimum):
        outcome = replace(outcome, optimum=jax.vmap(env.optimal_return)(levels))
    return outcome


def summary(outcome: Outcome, score: Float[Array, " levels"]) -> Metrics:
    """Means over the levels that have a score, however many episodes each saw."""
    scored = jnp.isfinite(score)

    def over_levels(x: Float[Array, " levels"]) -> Float[Array, ""]:
        return jnp.where(scored, x, 0).sum() / jnp.maximum(scored.sum(), 1)

    metrics = {"levels/score": over_levels(score), "levels/return": over_levels(outcome.mean_return)}
    if not isinstance(outcome.solved, tuple):
        metrics["levels/solved"] = over_levels(outcome.solve_rate)
    return metrics
