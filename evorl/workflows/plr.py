"""Prioritized level replay: a student learns on levels of its past, by how much is to be learned from them."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import hyperparameters, mesh, tree
from evorl.agents.ppo import PPOHyperparams
from evorl.errors import require, require_whole
from evorl.hyperparameters import Number, as_state, default, hyperparameter
from evorl.levels import CurationHyperparams, LevelBuffer, MaxMC, Score
from evorl.levels.generators import SAMPLED, Generator
from evorl.priors import Uniform
from evorl.types import (
    Agent,
    Batch,
    Key,
    Level,
    Leveled,
    Metrics,
    Mutates,
    SlotPolicy,
    Transition,
)
from evorl.vector_env import Plan, Played, leveled
from evorl.workflows import base, curricula
from evorl.workflows.on_policy import OnPolicy, OnPolicyState

MAX_MC = MaxMC()


@struct.dataclass
class PLRHyperparams:
    """Those of the student and of the generator, and by what levels are replayed."""

    student: Any = default(PPOHyperparams)
    generator: Any = default(dict)
    curation: CurationHyperparams = default(CurationHyperparams)
    replay: Number = hyperparameter(
        0.5, 0.0, 1.0, "p, the share of iterations that replay, once half of the buffer is full", Uniform(0.1, 0.9)
    )


@struct.dataclass
class PLRState:
    hyperparams: PLRHyperparams
    env_params: Any
    student: OnPolicyState  # without hyperparams and env_params, which are those above
    buffer: LevelBuffer
    generator: Any
    parents: Any  # the levels that were replayed last, leaves [n, ...]; () where none have children
    fertile: Any  # [] bool, whether their children are to come; () where none have


@struct.dataclass
class Dealt:
    """The levels of an iteration."""

    levels: Level  # leaves [groups n, ...]
    places: Any  # [n] int32, of those that are replayed
    ages: Any  # of the buffer after they were drawn
    replays: Any  # [] bool, whether they are
    new: Any  # [groups n] bool, which levels are not from the buffer
    generated: Any  # [] bool, whether the generator's are played
    made_of: Any  # by the generator
    generator: Any  # its state, which waits to be told


@dataclass(frozen=True)
class PLR:
    """Each iteration plays n levels, new ones or some that the buffer has kept, and scores them.

    n is student.num_envs / repeats; each level is played in `repeats` slots. Where robust, the student learns from
    replays alone (Jiang et al. 2021, arXiv:2110.02439), else from new levels too (arXiv:2010.03934). With num_edits, an
    iteration of replays is followed by one of their children, from which nothing is learned (ACCEL: Parker-Holder et
    al. 2022, arXiv:2203.01302). Where side_by_side, new levels, replays and children are played at once, n of each, and
    the student learns from the replays (Jiang et al. 2023, arXiv:2311.12716). An evaluation is of levels as the
    environment draws them.
    """

    student: OnPolicy
    generator: Generator = SAMPLED
    score: Score = MAX_MC
    capacity: int = 4000
    prioritization: str = "rank"
    robust: bool = True
    side_by_side: bool = False
    num_edits: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        base.check_positive(self, "capacity", "repeats")
        LevelBuffer.empty(1, (), self.prioritization)  # which raises
        env, name = self.env, type(self.env).__name__
        given, envs = self.repeats, self.student.num_envs
        require(envs % given == 0, "repeats", given, f"must divide num_envs, {envs}")
        curricula.check_student(self.student)
        require(self.capacity >= self.num_levels, "capacity", self.capacity, f"must be at least {self.num_levels}")
        require_whole("num_edits", self.num_edits, 0)
        mutates = not self.num_edits or isinstance(env, Mutates)
        require(mutates, "num_edits", self.num_edits, f"must be 0: levels of {name} cannot mutate")
        learns = self.robust or not self.side_by_side
        require(learns, "robust", self.robust, "must be true where side_by_side, which learn from replays")
        ended = self.repeats * curricula.certain(self.student)
        curricula.check(self.score, env, ended, self.prioritization, more=curricula.of_student(self.agent))

    def hyperparams(self) -> PLRHyperparams:
        return PLRHyperparams(hyperparameters.of(self.student), hyperparameters.of(self.generator))

    @property
    def env(self) -> Leveled:
        """That of the student."""
        return leveled(self.student.env)

    @property
    def agent(self) -> Agent:
        """The student."""
        return self.student.agent

    @property
    def num_levels(self) -> int:
        """Levels of a batch, n."""
        return self.student.num_envs // self.repeats

    @property
    def groups(self) -> int:
        """Batches of an iteration."""
        return (3 if self.num_edits else 2) if self.side_by_side else 1

    @property
    def player(self) -> OnPolicy:
        """The student with environments for all batches of an iteration."""
        return replace(self.student, num_envs=self.groups * self.student.num_envs)

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent: the slots, over as many devices as can share the buffer's levels too."""
        return {mesh.SLOTS: math.gcd(self.player.parallel[mesh.SLOTS], self.capacity)}

    def axes(self, state: PLRState) -> PLRState:
        nothing: Any = ""
        buffer = LevelBuffer(mesh.SLOTS, nothing)
        return PLRState(nothing, nothing, self.player.axes(state.student), buffer, nothing, nothing, nothing)

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes."""
        steps, updates = self.player.num_rows, self.student.work["gradient_steps"]
        return {"env_steps": (steps, steps), "gradient_steps": (0 if self.robust else updates[0], updates[1])}

    def init(self, key: Key, hyperparams: PLRHyperparams, env_params: Any = None) -> PLRState:
        key_student, key_generator = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        student = self.player.init(key_student, hyperparams.student, env_params)
        generator = self.generator.init(key_generator, self.env, self.num_levels, hyperparams.generator)
        level = jax.eval_shape(self.env.sample, key, env_params)
        buffer = LevelBuffer.empty(self.capacity, level, self.prioritization)
        parents = tree.broadcast(tree.zeros(level), self.num_levels) if self.num_edits else ()
        return PLRState(hyperparams, env_params, curricula.held(student), buffer, generator, parents, jnp.bool_(False))

    def step(self, state: PLRState, key: Key) -> tuple[PLRState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: PLRState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def learner(self, state: PLRState) -> OnPolicyState:
        """The state of the student as its own workflow has it."""
        return curricula.whole(state.student, state)

    def plan(self, state: PLRState, key: Key) -> tuple[Plan, Dealt]:
        """An episode after the other on each of the levels that are dealt, exploring."""
        key_deal, key_plan = jax.random.split(key)
        dealt = self.deal(state, key_deal)
        plan, _ = self.player.plan(self.learner(state), key_plan)
        return replace(plan, starts=curricula.in_slots(dealt.levels, self.repeats), restart=True), dealt

    def deal(self, state: PLRState, key: Key) -> Dealt:
        """What is played: new levels, replays, or children; side by side all that there are."""
        key_new, key_choice, key_draw, key_edit = jax.random.split(key, 4)
        h, n, buffer = state.hyperparams, self.num_levels, state.buffer
        new, made_of, generator = self.generator.ask(
            key_new, state.generator, self.env, n, state.env_params, h.generator
        )
        ready = 2 * buffer.size >= self.capacity
        chosen = self.side_by_side | jax.random.bernoulli(key_choice, h.replay)
        replays = ready & chosen & (self.side_by_side | ~state.fertile)
        places, drawn = buffer.draw(key_draw, n, h.curation, replays)
        batches, fresh = [new, tree.where(replays, buffer.at(places), new)], [jnp.bool_(True), jnp.bool_(False)]
        if isinstance(self.env, Mutates) and self.num_edits:
            mutate = jax.vmap(partial(self.env.mutate, num_edits=self.num_edits))
            children = mutate(jax.random.split(key_edit, n), state.parents)
            batches, fresh = [*batches, tree.where(state.fertile, children, new)], [*fresh, state.fertile]
        if self.side_by_side:  # where a batch is not to be, there are the new levels once more, which count once
            levels, fresh = tree.merge_axes(tree.stack(batches)), jnp.repeat(jnp.stack(fresh), n)
            generated = jnp.bool_(True)
        else:
            which = jnp.where(state.fertile, 2, replays)
            levels, fresh = tree.index(tree.stack(batches), which), jnp.broadcast_to(~replays, n)
            generated = which == 0
        return Dealt(levels, places, drawn.ledger.age, replays, fresh, generated, made_of, generator)

    def exam(self, state: PLRState, key: Key) -> Plan:
        """Whole episodes, greedily, each on a level that the environment draws."""
        return curricula.exam(self.player, self.learner(state), key)

    def play(self, state: PLRState, plan: Plan, key: Key) -> tuple[PLRState, Played]:
        return state, self.player.play(self.learner(state), plan, key)[1]

    def absorb(self, state: PLRState, carry: Dealt, played: Played, key: Key) -> tuple[PLRState, Metrics]:
        key_learn, key_tell = jax.random.split(key)
        h, buffer = state.hyperparams, state.buffer
        student, batch = self.player.assess(replace(self.learner(state), slots=played.slots), played.stored)
        best = buffer.best(carry.levels, self.env.equal)
        outcome = curricula.outcome(self.player, student, played.stored, batch, carry.levels, best)
        score, highest = self.score(outcome), outcome.highest_return
        buffer = replace(buffer, ledger=replace(buffer.ledger, age=carry.ages))
        again = self.replayed((score, highest), 1)
        buffer = buffer.updated(carry.places, jnp.where(carry.replays, again[0], jnp.nan), again[1])
        entering = jnp.where(carry.new, score, jnp.nan)
        buffer = buffer.inserted(carry.levels, entering, highest, self.env.equal, h.curation)

        def tell(_: Array, generator: Any) -> Any:
            return self.generator.tell(key_tell, carry.made_of, score[: self.num_levels], generator, h.generator)

        asked = tree.where(carry.generated, carry.generator, state.generator)
        generator = tree.repeat(carry.generated.astype(jnp.int32), tell, asked)
        student, metrics = self.learn(student, played.stored, batch, carry.replays, key_learn)
        parents = self.replayed(carry.levels, 1) if self.num_edits else ()
        fertile = carry.replays & (self.num_edits > 0)
        after = PLRState(h, state.env_params, curricula.held(student), buffer, generator, parents, fertile)
        kept = {"levels/replayed": carry.replays.astype(jnp.float32), "levels/kept": buffer.size / self.capacity}
        return after, played.metrics() | metrics | kept | curricula.summary(outcome, score)

    def replayed(self, x: Any, per_level: int, axis: int = 0) -> Any:
        """Of x, whose leaves have per_level of all levels' along an axis, the part of the replays."""
        if not self.side_by_side:
            return x
        n = per_level * self.num_levels
        return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, n, 2 * n, axis=axis), x)

    def learn(
        self, student: OnPolicyState, rollout: Transition, batch: Batch, replays: Bool[Array, ""], key: Key
    ) -> tuple[OnPolicyState, Metrics]:
        """The student after its passes over the replays or, where not robust, over any batch; none over others."""
        count = self.student.num_epochs
        epochs = jnp.where(replays, count, 0) if self.robust else jnp.int32(count)
        rollout, batch = self.replayed((rollout, batch), self.repeats, axis=1)
        before = replace(student, iteration=student.iteration * self.groups)  # by which schedules count env steps
        after, metrics = self.student.improve(before, rollout, batch, key, epochs)
        return replace(after, iteration=student.iteration + 1), metrics

    def report(self, state: PLRState, played: Played) -> Metrics:
        return self.player.report(state.student, played)

    def policy(self, state: PLRState, explores: bool = False) -> SlotPolicy:
        """How the student acts in one environment, greedily or exploring."""
        return self.player.policy(self.learner(state), explores)

    def inherit(self, state: PLRState, parent: PLRState) -> PLRState:
        """The parent, curriculum and all, but with the state's own environments."""
        student = self.player.inherit(self.learner(state), self.learner(parent))
        return replace(parent, student=curricula.held(student), env_params=state.env_params)
