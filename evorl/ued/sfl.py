"""Sampling for learnability: a student learns half of the time on levels that it sometimes solves."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from evorl import mesh, tree
from evorl.errors import require
from evorl.parts import part, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Key, Level, Metrics, Numbers
from evorl.ued import curricula
from evorl.ued.scores import Learnability, Outcome, Score
from evorl.vector_env import LevelStarts, Rollout, RolloutPlan, TransitionStore
from evorl.workflows import base
from evorl.workflows.on_policy import OnPolicy, OnPolicyState

LEARNABILITY = Learnability()


@struct.dataclass
class LearnableLevels:
    """Levels with the highest scores among those that were sampled last."""

    levels: Level  # leaves [capacity, ...]
    score: Float[Array, " capacity"]  # -inf without a score


@struct.dataclass
class SFLState:
    numbers: Numbers
    env_params: PyTree
    student: OnPolicyState  # without numbers and env_params, which the state of the curriculum holds
    learnable_levels: LearnableLevels


@part
class SFL(curricula.BaseCurriculum):
    """Sampling for learnability: the student plays the most learnable of many sampled levels, and new levels.

    Every `trial_interval` iterations, the policy tries num_batches * num_candidates sampled levels, in `episodes`
    exploring episodes each. The `capacity` levels with the highest scores replace the kept levels. In each
    iteration, a fraction `kept_fraction` of the student's environments plays levels drawn uniformly from the kept
    ones. The others play newly sampled levels. An environment has four levels for an iteration, which it
    plays in turn. The student learns from all of them. An evaluation uses levels that the environment samples.

    The episodes of a trial run in parallel, each for the maximum length of an episode. These steps are
    included in env_steps.

    Args:
        student: Workflow of the student.
        score: Score of a level.
        capacity: Number of levels that are kept.
        num_candidates: Number of levels that are tried at the same time.
        num_batches: Number of such batches, which are tried sequentially.
        episodes: Number of episodes on each level that is tried.
        trial_interval: Number of iterations from one trial of levels to the next.
        kept_fraction: Fraction of the environments that play kept levels.

    Source: Rutherford et al. 2024, arXiv:2408.15099, algorithm 1.
    """

    student: OnPolicy
    score: Score = LEARNABILITY
    capacity: int = 1000
    num_candidates: int = 5000
    num_batches: int = 5
    episodes: int = 8
    trial_interval: int = 100
    kept_fraction: float = 0.5

    def __post_init__(self) -> None:
        base.check_positive(self, "capacity", "num_candidates", "num_batches", "episodes", "trial_interval")
        tried = self.num_batches * self.num_candidates
        require(
            self.capacity <= tried, "capacity", self.capacity, f"must be at most num_batches * num_candidates, {tried}"
        )
        require(0 <= self.kept_fraction <= 1, "kept_fraction", self.kept_fraction, "must be from 0 to 1")
        curricula.check_curriculum_score(self.score, self.env, self.episodes)

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of devices, at most, that can share both the environments and the candidates."""
        return {mesh.ENVS: math.gcd(self.student.parallel_axes[mesh.ENVS], self.num_candidates)}

    def state_sharding(self, state: SFLState) -> SFLState:
        nothing: Any = ""
        return SFLState(nothing, nothing, self.student.state_sharding(state.student), nothing)

    @property
    def trial_steps(self) -> int:
        """Return the number of env steps of a trial of all candidates."""
        return self.num_batches * self.num_candidates * self.episodes * self.env.max_episode_steps

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name."""
        steps = self.student.num_transitions
        return self.student.iteration_cost | {"env_steps": (steps, steps + self.trial_steps)}

    def count_env_steps(self, state: SFLState) -> Array:
        """Return the number of env steps so far, with those of the trials that have begun.

        Args:
            state: State of the workflow.
        """
        trials = -(-state.student.iteration // self.trial_interval)
        return super().count_env_steps(state) + trials.astype(jnp.float32) * self.trial_steps

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> SFLState:
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        student = self.student.init(key, numbers.get("student", {}), env_params)
        level = tree.zeros_like(jax.eval_shape(self.env.sample_level, key, env_params))
        kept = LearnableLevels(tree.broadcast(level, self.capacity), jnp.full(self.capacity, -jnp.inf, jnp.float32))
        return SFLState(numbers, env_params, base.drop_shared_fields(student), kept)

    def plan(self, state: SFLState, key: Key) -> tuple[RolloutPlan, LearnableLevels]:
        """Try candidates if that is due, and plan num_steps exploring steps per environment on kept or new levels."""
        key_sample, key_fresh, key_kept, key_plan = jax.random.split(key, 4)
        due = self.is_due(state)
        empty = replace(state.learnable_levels, score=jnp.full(self.capacity, -jnp.inf, jnp.float32))

        def try_candidates(i: Array, kept: LearnableLevels) -> LearnableLevels:
            return self.update_learnable_levels(state, kept, jax.random.fold_in(key_sample, i))

        kept = tree.masked_fori_loop(
            self.num_batches * due, try_candidates, tree.select(due, empty, state.learnable_levels)
        )
        rows, envs = self.student.vector_env.max_starts, self.student.num_envs
        fresh = curricula.sample_levels(self.env, key_fresh, state.env_params, rows, envs)
        place = jax.random.randint(key_kept, (rows, envs), 0, self.capacity)
        learnable = jnp.broadcast_to(jnp.arange(envs) < round(self.kept_fraction * envs), (rows, envs))
        levels = tree.select(learnable & jnp.isfinite(kept.score[place]), tree.index(kept.levels, place), fresh)
        plan, _ = self.student.plan(self.student_state(state), key_plan)
        return replace(plan, starts=LevelStarts(levels, jnp.int32(rows))), kept

    def is_due(self, state: SFLState) -> Bool[Array, ""]:
        """Return whether this iteration begins with a trial of candidates, bool [].

        Args:
            state: State of the workflow.
        """
        return state.student.iteration % self.trial_interval == 0

    def update_learnable_levels(self, state: SFLState, kept: LearnableLevels, key: Key) -> LearnableLevels:
        """Try a batch of newly sampled levels, and keep the best of these and of the levels that are kept so far.

        Args:
            state: State of the workflow, with the policy.
            kept: Levels that are kept so far.
            key: Random key.

        Returns:
            The levels with the highest scores, leaves [capacity, ...].
        """
        key_levels, key_plan, key_play = jax.random.split(key, 3)
        student, steps = self.student_state(state), self.env.max_episode_steps
        levels = curricula.sample_levels(self.env, key_levels, state.env_params, self.num_candidates)
        n = self.num_candidates * self.episodes
        plan, _ = self.student.plan(student, key_plan)
        plan = replace(
            plan, starts=curricula.make_level_starts(levels, self.episodes), restart=True, steps=jnp.int32(steps)
        )
        blank = jnp.zeros((steps, n)), jnp.zeros((steps, n), bool)
        kept_rewards = lambda _, t, mask: (jnp.where(mask, t.reward, jnp.nan), t.is_done)  # noqa: E731
        store = TransitionStore(steps, blank, kept_rewards)
        world = replace(self.student.vector_env, num_envs=n)
        played = world.rollout(self.student.behaviour(student), state.env_params, plan, None, key_play, store)
        reward, ended = played.stored
        outcome = Outcome(reward, ended, repeats=self.episodes)
        score = self.score(curricula.judge_outcome(self.env, outcome, levels))
        score = jnp.where(jnp.isfinite(score), score, -jnp.inf)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), kept, LearnableLevels(levels, score))
        return tree.index(both, jax.lax.top_k(both.score, self.capacity)[1])

    def learn_from(
        self, state: SFLState, carry: LearnableLevels, played: Rollout, key: Key
    ) -> tuple[SFLState, Metrics]:
        student = replace(self.student_state(state), envs=played.envs)
        student, metrics = self.student.learn(student, played.stored, key)
        metrics = played.metrics() | metrics
        metrics["env_steps"] = metrics["env_steps"] + jnp.where(self.is_due(state), self.trial_steps, 0)
        after = SFLState(state.numbers, state.env_params, base.drop_shared_fields(student), carry)
        return after, metrics | {"levels/score": carry.score.mean(where=jnp.isfinite(carry.score))}
