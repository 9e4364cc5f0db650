"""Prioritized level replay: a student replays levels of its past, those with high scores more often."""

import math
from dataclasses import field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, PyTree

from evorl import mesh, tree
from evorl.errors import require, require_int
from evorl.parts import Number, bind, number, part, resolve_numbers
from evorl.priors import Uniform
from evorl.tree import resolve_env_params
from evorl.types import (
    Batch,
    Key,
    Level,
    Metrics,
    MutableLevelEnv,
    Numbers,
    State,
    Transition,
)
from evorl.ued import curricula
from evorl.ued.buffer import LevelBuffer
from evorl.ued.generators import SAMPLED_LEVELS, LevelGenerator
from evorl.ued.score_table import Curation
from evorl.ued.scores import MaxMC, Score
from evorl.vector_env import Rollout, RolloutPlan
from evorl.workflows import base
from evorl.workflows.on_policy import OnPolicy, OnPolicyState

MAX_MC = MaxMC()


@struct.dataclass
class PLRState:
    numbers: Numbers
    env_params: PyTree
    student: OnPolicyState  # without numbers and env_params, which the state of the curriculum holds
    buffer: LevelBuffer
    generator: State
    parents: Level | None  # levels that were replayed last, leaves [n, ...]; None without mutations
    children_due: Bool[Array, ""]  # whether their mutations are played next


@struct.dataclass
class LevelBatch:
    """Levels of an iteration."""

    levels: Level  # leaves [batches * n, ...]
    buffer_indices: Int[Array, " n"]  # of the replayed levels
    ages: Int[Array, " capacity"]  # of all levels in the buffer, after the replayed ones were drawn
    is_replay: Bool[Array, ""]  # whether levels are replayed
    is_new: Bool[Array, " levels"]  # levels that are not from the buffer, [batches * n]
    is_generated: Bool[Array, ""]  # whether levels of the generator are played
    genomes: PyTree  # of the levels of the generator
    generator: State  # after ask, before tell


@part
class PLR(curricula.BaseCurriculum):
    """Prioritized level replay (PLR), also robust PLR and ACCEL: play new levels or replay levels from a buffer.

    Each iteration plays n = student.num_envs / repeats levels, each in `repeats` environments, and scores
    them. An evaluation uses levels that the environment samples.

    - With robust=True, the student learns from replayed levels only (robust PLR; Jiang et al. 2021,
      arXiv:2110.02439). Otherwise it also learns from new levels (PLR; arXiv:2010.03934).
    - With num_edits > 0, an iteration of replays is followed by an iteration of their mutations, from which a
      robust student does not learn (ACCEL; Parker-Holder et al. 2022, arXiv:2203.01302).
    - With parallel=True, every iteration plays n new levels, n replayed levels and n mutations at the
      same time, and the student learns from the replayed ones (Jiang et al. 2023, arXiv:2311.12716).

    Args:
        student: Workflow of the student.
        generator: Generator of new levels.
        score: Score of a level.
        capacity: Maximum number of levels in the buffer.
        prioritization: Whether levels are replayed by the "rank" of their scores or "proportional" to them.
        robust: Whether the student learns from replayed levels only.
        parallel: Whether an iteration plays new, replayed and mutated levels at the same time.
        num_edits: Number of edits of a mutation; 0 for no mutations.
        repeats: Number of environments that play the same level.
        curation: Temperature and staleness of the replay.
    """

    student: OnPolicy
    generator: LevelGenerator = SAMPLED_LEVELS
    score: Score = MAX_MC
    capacity: int = 4000
    prioritization: str = "rank"
    robust: bool = True
    parallel: bool = False
    num_edits: int = 0
    repeats: int = 1
    curation: Curation = field(default_factory=Curation)
    replay_prob: Number = number(
        0.5,
        0.0,
        1.0,
        "p, probability that an iteration replays levels, once the buffer is half full, unless it mutates levels",
        Uniform(0.1, 0.9),
    )

    def __post_init__(self) -> None:
        base.check_positive(self, "capacity", "repeats")
        LevelBuffer.empty(1, None, self.prioritization)  # raises OptionError if it is unknown
        env, name = self.env, type(self.env).__name__
        given, envs = self.repeats, self.student.num_envs
        require(envs % given == 0, "repeats", given, f"must divide num_envs, {envs}")
        curricula.check_student(self.student)
        require(self.capacity >= self.num_levels, "capacity", self.capacity, f"must be at least {self.num_levels}")
        require_int("num_edits", self.num_edits, 0)
        mutates = not self.num_edits or isinstance(env, MutableLevelEnv)
        require(mutates, "num_edits", self.num_edits, f"must be 0: levels of {name} cannot be mutated")
        learns = self.robust or not self.parallel
        require(learns, "robust", self.robust, "must be true with parallel=true")
        ended = self.repeats * curricula.count_guaranteed_episodes(self.student)
        curricula.check_curriculum_score(
            self.score, env, ended, self.prioritization, more=curricula.list_outcome_fields(self.agent)
        )

    @property
    def num_levels(self) -> int:
        """Return the number of levels in a batch, n."""
        return self.student.num_envs // self.repeats

    @property
    def num_level_batches(self) -> int:
        """Return the number of batches of levels in an iteration."""
        return (3 if self.num_edits else 2) if self.parallel else 1

    @property
    def full_student(self) -> OnPolicy:
        """Return the student with environments for all batches of an iteration."""
        return replace(self.student, num_envs=self.num_level_batches * self.student.num_envs)

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of devices, at most, that can share both the environments and the levels of the buffer."""
        return {mesh.ENVS: math.gcd(self.full_student.parallel_axes[mesh.ENVS], self.capacity)}

    def state_sharding(self, state: PLRState) -> PLRState:
        nothing: Any = ""
        buffer = LevelBuffer(mesh.ENVS, nothing)
        return PLRState(
            nothing, nothing, self.full_student.state_sharding(state.student), buffer, nothing, nothing, nothing
        )

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name."""
        steps, updates = self.full_student.num_transitions, self.student.iteration_cost["gradient_steps"]
        return {"env_steps": (steps, steps), "gradient_steps": (0 if self.robust else updates[0], updates[1])}

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PLRState:
        key_student, key_generator = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        student = self.full_student.init(key_student, numbers.get("student", {}), env_params)
        generator = bind(self, numbers).generator.init(key_generator, self.env, self.num_levels)
        level = jax.eval_shape(self.env.sample_level, key, env_params)
        buffer = LevelBuffer.empty(self.capacity, level, self.prioritization)
        parents = tree.broadcast(tree.zeros_like(level), self.num_levels) if self.num_edits else None
        return PLRState(
            numbers, env_params, base.drop_shared_fields(student), buffer, generator, parents, jnp.bool_(False)
        )

    def plan(self, state: PLRState, key: Key) -> tuple[RolloutPlan, LevelBatch]:
        """Choose levels, and plan exploring episodes on each of them, one after the other."""
        key_deal, key_plan = jax.random.split(key)
        dealt = self.choose_levels(state, key_deal)
        plan, _ = self.full_student.plan(self.student_state(state), key_plan)
        return replace(plan, starts=curricula.make_level_starts(dealt.levels, self.repeats), restart=True), dealt

    def choose_levels(self, state: PLRState, key: Key) -> LevelBatch:
        """Choose the levels of an iteration: new, replayed or mutated ones; with parallel, a batch of each.

        With parallel, new levels take the place of a batch that is not available, and count only once.

        Args:
            state: State of the workflow.
            key: Random key.

        Returns:
            The levels and their origin.
        """
        key_new, key_choice, key_replay, key_mutate = jax.random.split(key, 4)
        new, genomes, generator = self.generate_levels(state, key_new)
        ready = 2 * state.buffer.size >= self.capacity
        chosen = self.parallel | jax.random.bernoulli(key_choice, self.replay_prob)
        is_replay = ready & chosen & (self.parallel | ~state.children_due)
        replayed, indices, ages = self.replay_levels(state, key_replay, is_replay)
        batches, are_new = [new, tree.select(is_replay, replayed, new)], [jnp.bool_(True), jnp.bool_(False)]
        if self.num_edits:
            mutated = self.mutate_levels(state, key_mutate)
            batches.append(tree.select(state.children_due, mutated, new))
            are_new.append(state.children_due)
        if self.parallel:
            levels, is_new = tree.merge_axes(tree.stack(batches)), jnp.repeat(jnp.stack(are_new), self.num_levels)
            is_generated = jnp.bool_(True)
        else:
            which = jnp.where(state.children_due, 2, is_replay)
            levels, is_new = tree.index(tree.stack(batches), which), jnp.broadcast_to(~is_replay, self.num_levels)
            is_generated = which == 0
        return LevelBatch(levels, indices, ages, is_replay, is_new, is_generated, genomes, generator)

    def generate_levels(self, state: PLRState, key: Key) -> tuple[Level, Any, Any]:
        """Generate n new levels.

        Args:
            state: State of the workflow.
            key: Random key.

        Returns:
            Levels, leaves [n, ...], their genomes, and the state of the generator.
        """
        return self.generator.ask(key, state.generator, self.env, self.num_levels, state.env_params)

    def replay_levels(self, state: PLRState, key: Key, where: Bool[Array, ""]) -> tuple[Level, Array, Array]:
        """Draw n levels from the buffer by their scores and ages.

        Args:
            state: State of the workflow.
            key: Random key.
            where: Whether levels are replayed in this iteration, []. If not, the levels are arbitrary and no
                age changes.

        Returns:
            Levels, leaves [n, ...], their indices in the buffer, and the new ages of all levels in the
            buffer.
        """
        indices, after = state.buffer.sample_indices(key, self.num_levels, self.curation, where)
        return state.buffer.get_levels(indices), indices, after.score_table.age

    def mutate_levels(self, state: PLRState, key: Key) -> Level:
        """Mutate each level that was replayed last by num_edits edits.

        Args:
            state: State of the workflow, with the levels.
            key: Random key.

        Returns:
            The mutated levels, leaves [n, ...].
        """
        env: Any = self.env
        mutate = jax.vmap(partial(env.mutate_level, num_edits=self.num_edits))
        return mutate(jax.random.split(key, self.num_levels), state.parents)

    def learn_from(self, state: PLRState, carry: LevelBatch, played: Rollout, key: Key) -> tuple[PLRState, Metrics]:
        key_learn, key_tell = jax.random.split(key)
        buffer = state.buffer
        student, batch = self.full_student.prepare_batch(
            replace(self.student_state(state), envs=played.envs), played.stored
        )
        best = buffer.get_best_returns(carry.levels, self.env.is_same_level)
        outcome = curricula.compute_outcome(self.full_student, student, played.stored, batch, carry.levels, best)
        score, highest = self.score(outcome), outcome.highest_return
        buffer = replace(buffer, score_table=replace(buffer.score_table, age=carry.ages))
        again = self.select_replays((score, highest), 1)
        buffer = buffer.update_scores(carry.buffer_indices, jnp.where(carry.is_replay, again[0], jnp.nan), again[1])
        entering = jnp.where(carry.is_new, score, jnp.nan)
        buffer = buffer.insert_levels(carry.levels, entering, highest, self.env.is_same_level, self.curation)

        def tell(_: Array, generator: Any) -> Any:
            return self.generator.tell(key_tell, carry.genomes, score[: self.num_levels], generator)

        asked = tree.select(carry.is_generated, carry.generator, state.generator)
        generator = tree.masked_fori_loop(carry.is_generated.astype(jnp.int32), tell, asked)
        student, metrics = self.learn(student, played.stored, batch, carry.is_replay, key_learn)
        parents = self.select_replays(carry.levels, 1) if self.num_edits else None
        fertile = carry.is_replay & (self.num_edits > 0)
        after = PLRState(
            state.numbers, state.env_params, base.drop_shared_fields(student), buffer, generator, parents, fertile
        )
        kept = {"levels/replayed": carry.is_replay.astype(jnp.float32), "levels/kept": buffer.size / self.capacity}
        return after, played.metrics() | metrics | kept | curricula.summarize_levels(outcome, score)

    def select_replays(self, x: Any, per_level: int, axis: int = 0) -> Any:
        """Select the part of an array that belongs to the replayed levels.

        Args:
            x: Pytree of arrays for all batches of levels.
            per_level: Number of entries per level along the axis.
            axis: Axis of the levels.

        Returns:
            The part of the batch of replays; without parallel, x itself.
        """
        if not self.parallel:
            return x
        n = per_level * self.num_levels
        return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, n, 2 * n, axis=axis), x)

    def learn(
        self, student: OnPolicyState, rollout: Transition, batch: Batch, replays: Bool[Array, ""], key: Key
    ) -> tuple[OnPolicyState, Metrics]:
        """Train the student on replayed levels or, if it is not robust, on levels of any kind.

        Args:
            student: State of the student.
            rollout: Transitions, leaves [num_steps, num_envs, ...].
            batch: Batch of the rollout.
            replays: Whether levels were replayed, []; if not, a robust student takes no gradient step.
            key: Random key.

        Returns:
            The new state of the student and the metrics.
        """
        count = self.student.num_epochs
        epochs = jnp.where(replays, count, 0) if self.robust else jnp.int32(count)
        rollout, batch = self.select_replays((rollout, batch), self.repeats, axis=1)
        # schedules count the env steps of all batches of levels
        before = replace(student, iteration=student.iteration * self.num_level_batches)
        after, metrics = self.student.update_on_batch(before, rollout, batch, key, epochs)
        return replace(after, iteration=student.iteration + 1), metrics
