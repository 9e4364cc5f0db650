"""A teacher that makes levels for students, and learns by what they do there: PAIRED, its population, minimax."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl import hyperparameters, tree
from evorl.agents.ppo import PPOHyperparams
from evorl.errors import OptionError, require
from evorl.hyperparameters import as_state, default
from evorl.levels import Outcome, RelativeRegret, Score
from evorl.types import Agent, Batch, Editable, Editor, Env, Key, Level, Leveled, Metrics, SlotPolicy, Transition
from evorl.vector_env import Plan, Played, Table, leveled
from evorl.workflows import base, curricula
from evorl.workflows.on_policy import OnPolicy, OnPolicyState

RELATIVE_REGRET = RelativeRegret()


def editor(env: Env) -> Editor:
    """Where a teacher makes levels of an environment; raises OptionError where it cannot."""
    if not isinstance(env, Editable):
        raise OptionError(f"env={type(env).__name__}: its levels cannot be made by a teacher (evorl.types.Editable)")
    return env.editor()


@struct.dataclass
class AdversaryHyperparams:
    """Those of all students, and those of their teacher."""

    student: Any = default(PPOHyperparams)
    teacher: Any = default(PPOHyperparams)


@struct.dataclass
class AdversaryState:
    hyperparams: AdversaryHyperparams
    env_params: Any  # of the students'
    students: (
        Any  # OnPolicyState, leaves [num_students, ...], without hyperparams and env_params, which are those above
    )
    teacher: Any  # likewise


@struct.dataclass
class Made:
    """The levels of an iteration, and how they were made."""

    levels: Level  # leaves [n, ...]
    teacher: Any  # its state after its episode
    rollout: Transition  # of the teacher, leaves [steps, n, ...]


@dataclass(frozen=True)
class Adversary:
    """Each iteration the teacher makes n levels, every student plays and learns from them, and the teacher from them.

    n is teacher.num_envs; each level is played in student.num_envs / n slots of each student. The teacher's only reward
    is the score of its level, at its last step. By relative regret of two students this is PAIRED (Dennis et al. 2020,
    arXiv:2012.02096), by population regret of more PopPAIRED, by the negative return of one the minimax teacher. What
    is evaluated and acts is student 0, on levels as the environment draws them; env_steps and gradient_steps are those
    of all students.
    """

    student: OnPolicy
    teacher: OnPolicy = field(metadata={"env": editor})
    num_students: int = 2
    score: Score = RELATIVE_REGRET

    def __post_init__(self) -> None:
        base.check_positive(self, "num_students")
        curricula.check_student(self.student)
        envs, made, maker = self.student.num_envs, self.num_levels, self.maker
        require(envs % made == 0, "teacher.num_envs", made, f"must divide num_envs of the student, {envs}")
        ended, gives = self.repeats * curricula.certain(self.student), curricula.of_student(self.agent)
        curricula.check(self.score, self.env, ended, "rank", self.num_students, gives)
        steps, episode = self.teacher.num_steps, maker.max_episode_steps
        require(steps == episode, "teacher.num_steps", steps, f"must be the steps in which it makes a level, {episode}")

        def ours_and_made() -> tuple[Level, Level]:
            key = jax.random.key(0)
            ours = self.env.sample(key, self.env.default_params)
            return ours, maker.level(maker.reset(key, maker.default_params)[0])

        ours, theirs = jax.eval_shape(ours_and_made)
        same = f"its levels must have the shapes of the student's, {jax.tree.map(jnp.shape, ours)}"
        require(ours == theirs, "teacher.env", type(maker).__name__, same)

    def hyperparams(self) -> AdversaryHyperparams:
        return AdversaryHyperparams(hyperparameters.of(self.student), hyperparameters.of(self.teacher))

    @property
    def env(self) -> Leveled:
        """That of the students."""
        return leveled(self.student.env)

    @property
    def maker(self) -> Editor:
        """That of the teacher; raises OptionError where it makes no levels."""
        if not isinstance(self.teacher.env, Editor):
            raise OptionError(f"teacher.env={type(self.teacher.env).__name__}: makes no levels (evorl.types.Editor)")
        return self.teacher.env

    @property
    def agent(self) -> Agent:
        """That of the students."""
        return self.student.agent

    @property
    def num_levels(self) -> int:
        """Levels of an iteration, n."""
        return self.teacher.num_envs

    @property
    def repeats(self) -> int:
        """Slots of a student that play the same level."""
        return self.student.num_envs // self.num_levels

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration takes."""
        return base.work(self.student, self.num_students)

    def init(self, key: Key, hyperparams: AdversaryHyperparams, env_params: Any = None) -> AdversaryState:
        key_students, key_teacher = jax.random.split(key)
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)

        def student(key: Key) -> OnPolicyState:
            return curricula.held(self.student.init(key, hyperparams.student, env_params))

        students = jax.vmap(student)(jax.random.split(key_students, self.num_students))
        teacher = self.teacher.init(key_teacher, hyperparams.teacher)
        return AdversaryState(hyperparams, env_params, students, curricula.held(teacher))

    def step(self, state: AdversaryState, key: Key) -> tuple[AdversaryState, Metrics]:
        return base.step(self, state, key)

    def evaluate(self, state: AdversaryState, key: Key) -> Metrics:
        return base.evaluate(self, state, key)

    def each(self, state: AdversaryState, of_one: Callable[..., Any], *given: Any) -> Any:
        """of_one(student, ...) of every student, as its own workflow has it, leaves [num_students, ...]."""

        def one(student: OnPolicyState, *given: Any) -> Any:
            return of_one(curricula.whole(student, state), *given)

        return jax.vmap(one)(state.students, *given)

    def first(self, state: AdversaryState) -> OnPolicyState:
        """The state of student 0 as its own workflow has it."""
        return curricula.whole(tree.index(state.students, 0), state)

    def make(self, state: AdversaryState, key: Key) -> Made:
        """The levels in which the episodes of the teacher end."""
        key_starts, key_plan, key_play = jax.random.split(key, 3)
        teacher, where = replace(state.teacher, hyperparams=state.hyperparams.teacher), self.maker
        teacher = replace(teacher, env_params=as_state(where.default_params))
        keys = jax.random.split(key_starts, self.num_levels)
        once = Table(jax.vmap(where.reset, (0, None))(keys, teacher.env_params))
        plan = replace(self.teacher.plan(teacher, key_plan)[0], starts=once, restart=True)
        _, played = self.teacher.play(teacher, plan, key_play)
        return Made(jax.vmap(where.level)(played.slots.env_state), teacher, played.stored)

    def plan(self, state: AdversaryState, key: Key) -> tuple[Plan, Made]:
        """An episode of every student after the other on each of the levels that are made, exploring."""
        key_make, key_plan = jax.random.split(key)
        made = self.make(state, key_make)
        starts = curricula.in_slots(made.levels, self.repeats)

        def plan(student: OnPolicyState) -> Plan:
            return replace(self.student.plan(student, key_plan)[0], starts=starts, restart=True)

        return self._for_all(state, plan), made

    def exam(self, state: AdversaryState, key: Key) -> Plan:
        """Whole episodes of each student, greedily, on levels that the environment draws, the same for all."""
        return self._for_all(state, lambda student: curricula.exam(self.student, student, key))

    def play(self, state: AdversaryState, plan: Plan, key: Key) -> tuple[AdversaryState, Played]:
        """What the students played, leaves [num_students, ...]."""

        def play(student: OnPolicyState, params: Any, key: Key) -> Played:
            return self.student.play(student, replace(plan, params=params), key)[1]

        return state, self.each(state, play, plan.params, jax.random.split(key, self.num_students))

    def absorb(self, state: AdversaryState, carry: Made, played: Played, key: Key) -> tuple[AdversaryState, Metrics]:
        key_students, key_teacher = jax.random.split(key)

        def learn(student: OnPolicyState, played: Played, key: Key) -> tuple[Any, Batch, Metrics]:
            student, batch = self.student.assess(replace(student, slots=played.slots), played.stored)
            passes = jnp.int32(self.student.num_epochs)
            after, metrics = self.student.improve(student, played.stored, batch, key, passes)
            return (curricula.held(student), curricula.held(after)), batch, metrics

        keys = jax.random.split(key_students, self.num_students)
        (before, students), batch, metrics = self.each(state, learn, played, keys)
        seen = self.outcome(replace(state, students=before), played.stored, batch, carry.levels)
        score = self.score(self._compared(seen, played.stored))
        scored, made = jnp.isfinite(score), carry.rollout
        last = made.reward.at[-1].add(jnp.where(scored, score, 0))
        made = replace(made, reward=last, weight=made.weight * scored)
        teacher, of_teacher = self.teacher.learn(carry.teacher, made, key_teacher)
        after = replace(state, students=students, teacher=curricula.held(teacher))
        spent = {"env_steps": played.stats.steps.sum(), "gradient_steps": metrics["gradient_steps"].sum()}
        metrics = tree.index(played, 0).metrics() | tree.index(metrics, 0) | spent
        of_teacher = {f"teacher/{name}": x for name, x in of_teacher.items()}
        return after, metrics | of_teacher | curricula.summary(seen, score)

    def outcome(self, state: AdversaryState, rollouts: Transition, batches: Batch, levels: Level) -> Outcome:
        """What student 0 did on the levels."""
        rollout, batch = tree.index((rollouts, batches), 0)
        never = jnp.full(self.num_levels, -jnp.inf)
        return curricula.outcome(self.student, self.first(state), rollout, batch, levels, never)

    def report(self, state: AdversaryState, played: Played) -> Metrics:
        return self.student.report(self.first(state), tree.index(played, 0))

    def policy(self, state: AdversaryState, explores: bool = False) -> SlotPolicy:
        """How student 0 acts in one environment, greedily or exploring."""
        return self.student.policy(self.first(state), explores)

    def inherit(self, state: AdversaryState, parent: AdversaryState) -> AdversaryState:
        """The parent, teacher and all, but with the state's own environments."""

        def heir(student: OnPolicyState, parent: OnPolicyState) -> OnPolicyState:
            return curricula.held(self.student.inherit(student, parent))

        return replace(parent, students=self.each(state, heir, parent.students), env_params=state.env_params)

    def _for_all(self, state: AdversaryState, plan: Callable[[OnPolicyState], Plan]) -> Plan:
        """The plan of a student for all of them: params are each one's own, leaves [num_students, ...]."""
        return replace(plan(self.first(state)), params=self.each(state, lambda student: plan(student).params))

    def _compared(self, seen: Outcome, rollouts: Transition) -> Outcome:
        """What the score looks at: student 0, or what all did."""
        if self.score.students == 1:
            return seen
        reward = jnp.where(rollouts.weight > 0, rollouts.reward, jnp.nan)
        return replace(seen, reward=reward, ended=rollouts.ended)
