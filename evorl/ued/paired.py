"""Teacher that makes levels for students and learns from their outcomes: PAIRED, PopPAIRED, and the minimax teacher."""

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import PyTree

from evorl import mesh, tree
from evorl.errors import OptionError, require
from evorl.metrics import COUNTS, MEASURED_STEPS
from evorl.parts import bind, part, replace_unchecked, resolve_numbers
from evorl.tree import as_arrays, resolve_env_params
from evorl.types import (
    Agent,
    Batch,
    EditableLevelEnv,
    EditorEnv,
    Env,
    Key,
    Level,
    LevelEnv,
    Metrics,
    Numbers,
    PolicyFn,
    Transition,
)
from evorl.ued import curricula
from evorl.ued.scores import Outcome, RelativeRegret, Score
from evorl.vector_env import Rollout, RolloutPlan, StartQueue, require_level_env
from evorl.workflows import base
from evorl.workflows.on_policy import OnPolicy, OnPolicyState

RELATIVE_REGRET = RelativeRegret()


def get_editor(env: Env) -> EditorEnv:
    """Return the environment in which a teacher builds levels; raise OptionError if there is none."""
    if not isinstance(env, EditableLevelEnv):
        raise OptionError(
            f"env={type(env).__name__}: must implement evorl.types.EditableLevelEnv, so that a teacher can build levels"
        )
    return env.make_editor()


@struct.dataclass
class PAIREDState:
    numbers: Numbers
    env_params: PyTree  # of the students' environment
    students: OnPolicyState  # leaves [num_students, ...], without numbers and env_params
    teacher: OnPolicyState  # without numbers and env_params


@struct.dataclass
class TeacherLevels:
    """Levels of an iteration, and the rollout of the teacher that made them."""

    levels: Level  # leaves [n, ...]
    teacher: OnPolicyState  # with numbers and env_params
    teacher_transitions: Transition  # leaves [steps, n, ...]


@part
class PAIRED(base.BaseStagedWorkflow):
    """Training of students on levels that a teacher makes and that reward the teacher: PAIRED and minimax.

    In each iteration, the teacher makes n = teacher.num_envs levels, every student plays and learns from
    them, and the teacher learns. Each level is played in student.num_envs / n environments of each student.
    The only reward of the teacher is the score of its level, at its last step.

    With `RelativeRegret` and two students, this is PAIRED (Dennis et al. 2020, arXiv:2012.02096): the teacher
    is its adversary, student 0 the protagonist and student 1 the antagonist. With
    `PopulationRegret` and more students, it is PopPAIRED. With `NegativeReturn` and one student, it is the
    minimax teacher.

    The policy of the workflow is that of student 0, which is evaluated on levels that the environment
    samples. The metrics env_steps and gradient_steps are totals over all students.

    Args:
        student: Workflow of each student.
        teacher: Workflow of the teacher, whose environment is an editor of levels.
        num_students: Number of students.
        score: Score of a level, which the teacher maximizes.
    """

    student: OnPolicy
    teacher: OnPolicy = field(metadata={"env": get_editor})
    num_students: int = 2
    score: Score = RELATIVE_REGRET

    def __post_init__(self) -> None:
        base.check_positive(self, "num_students")
        curricula.check_student(self.student)
        envs, made, maker = self.student.num_envs, self.num_levels, self.level_editor
        require(envs % made == 0, "teacher.num_envs", made, f"must divide num_envs of the student, {envs}")
        ended = self.repeats * curricula.count_guaranteed_episodes(self.student)
        gives = curricula.list_outcome_fields(self.agent)
        curricula.check_curriculum_score(self.score, self.env, ended, "rank", self.num_students, gives)
        steps, episode = self.teacher.num_steps, maker.max_episode_steps
        require(
            steps == episode, "teacher.num_steps", steps, f"must be the number of steps that build a level, {episode}"
        )

        def sample_and_make_level() -> tuple[Level, Level]:
            key = jax.random.key(0)
            ours = self.env.sample_level(key, self.env.default_params)
            return ours, maker.get_level(maker.reset(key, maker.default_params)[0])

        ours, theirs = jax.eval_shape(sample_and_make_level)
        same = f"its levels must have the shapes of the student's levels, {jax.tree.map(jnp.shape, ours)}"
        require(ours == theirs, "teacher.env", type(maker).__name__, same)

    @property
    def env(self) -> LevelEnv:
        """Return the environment of the students."""
        return require_level_env(self.student.env)

    @property
    def level_editor(self) -> EditorEnv:
        """Return the environment of the teacher.

        Raises:
            OptionError: If no levels can be built in it.
        """
        if not isinstance(self.teacher.env, EditorEnv):
            raise OptionError(f"teacher.env={type(self.teacher.env).__name__}: must implement evorl.types.EditorEnv")
        return self.teacher.env

    @property
    def agent(self) -> Agent:
        """Return the agent of the students."""
        return self.student.agent

    @property
    def num_levels(self) -> int:
        """Return the number of levels per iteration, n."""
        return self.teacher.num_envs

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of environments by which those of a student and those of the teacher can be divided."""
        return {mesh.ENVS: math.gcd(self.student.num_envs, self.teacher.num_envs)}

    @property
    def repeats(self) -> int:
        """Return the number of environments of a student that play the same level."""
        return self.student.num_envs // self.num_levels

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name."""
        return base.total_iteration_cost(self.student, self.num_students)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PAIREDState:
        key_students, key_teacher = jax.random.split(key)
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)

        def init_student(key: Key) -> OnPolicyState:
            return base.drop_shared_fields(self.student.init(key, numbers.get("student", {}), env_params))

        students = jax.vmap(init_student)(jax.random.split(key_students, self.num_students))
        teacher = self.teacher.init(key_teacher, numbers.get("teacher", {}))
        return PAIREDState(numbers, env_params, students, base.drop_shared_fields(teacher))

    def bound(self, state: PAIREDState) -> "PAIRED":
        """Return the workflow with the hyperparameters of a state.

        Schedules are evaluated at the env steps that the students and the teacher have each taken.

        Args:
            state: State of the workflow.
        """
        numbers, student = state.numbers, tree.index(state.students, 0)
        changed = {
            "student": bind(self.student, numbers.get("student", {}), self.student.count_env_steps(student)),
            "teacher": bind(self.teacher, numbers.get("teacher", {}), self.teacher.count_env_steps(state.teacher)),
        }
        return replace_unchecked(self, changed)

    def map_students(self, state: PAIREDState, of_one: Callable[..., Any], *given: Any) -> Any:
        """Apply a function to every student, vectorized with vmap.

        Args:
            state: State of the workflow.
            of_one: Function of the state of one student, in the form that the student's workflow has it, and
                of further arguments.
            *given: Further arguments, leaves [num_students, ...].

        Returns:
            The results, leaves [num_students, ...].
        """

        def apply_to_student(student: OnPolicyState, *given: Any) -> Any:
            return of_one(curricula.restore_shared_fields(student, state), *given)

        return jax.vmap(apply_to_student)(state.students, *given)

    def main_student_state(self, state: PAIREDState) -> OnPolicyState:
        """Return the state of student 0, the protagonist, without the axis of students.

        Args:
            state: State of the workflow.
        """
        return curricula.restore_shared_fields(tree.index(state.students, 0), state)

    def make_levels(self, state: PAIREDState, key: Key) -> TeacherLevels:
        """Let the teacher build levels, each in one episode.

        Args:
            state: State of the workflow.
            key: Random key.

        Returns:
            The levels in which the episodes end, with the rollout of the teacher.
        """
        key_starts, key_plan, key_play = jax.random.split(key, 3)
        teacher, where = replace(state.teacher, numbers=state.numbers.get("teacher", {})), self.level_editor
        teacher = replace(teacher, env_params=as_arrays(where.default_params))
        keys = jax.random.split(key_starts, self.num_levels)
        once = StartQueue(jax.vmap(where.reset, (0, None))(keys, teacher.env_params))
        plan = replace(self.teacher.plan(teacher, key_plan)[0], starts=once, restart=True)
        _, played = self.teacher.rollout(teacher, plan, key_play)
        assert played.envs is not None
        return TeacherLevels(jax.vmap(where.get_level)(played.envs.env_state), teacher, played.stored)

    def plan(self, state: PAIREDState, key: Key) -> tuple[RolloutPlan, TeacherLevels]:
        """Let the teacher build levels, and plan exploring episodes of every student on them, one after the other."""
        key_make, key_plan = jax.random.split(key)
        made = self.make_levels(state, key_make)
        starts = curricula.make_level_starts(made.levels, self.repeats)

        def plan_student(student: OnPolicyState) -> RolloutPlan:
            return replace(self.student.plan(student, key_plan)[0], starts=starts, restart=True)

        return self._plan_all_students(state, plan_student), made

    def plan_evaluation(self, state: PAIREDState, key: Key) -> RolloutPlan:
        """Plan greedy episodes of every student on levels that the environment samples, the same for all students."""
        return self._plan_all_students(state, lambda student: curricula.plan_evaluation(self.student, student, key))

    def rollout(self, state: PAIREDState, plan: RolloutPlan, key: Key) -> tuple[PAIREDState, Rollout]:
        """Run the plan with every student; the result has leaves [num_students, ...]."""

        def rollout_student(student: OnPolicyState, params: Any, key: Key) -> Rollout:
            return self.student.rollout(student, replace(plan, params=params), key)[1]

        return state, self.map_students(state, rollout_student, plan.params, jax.random.split(key, self.num_students))

    def learn_from(
        self, state: PAIREDState, carry: TeacherLevels, played: Rollout, key: Key
    ) -> tuple[PAIREDState, Metrics]:
        key_students, key_teacher = jax.random.split(key)

        def update_student(student: OnPolicyState, played: Rollout, key: Key) -> tuple[Any, Batch, Metrics]:
            student, batch = self.student.prepare_batch(replace(student, envs=played.envs), played.stored)
            passes = jnp.int32(self.student.num_epochs)
            after, metrics = self.student.update_on_batch(student, played.stored, batch, key, passes)
            return (base.drop_shared_fields(student), base.drop_shared_fields(after)), batch, metrics

        keys = jax.random.split(key_students, self.num_students)
        (before, students), batch, metrics = self.map_students(state, update_student, played, keys)
        seen = self.compute_outcome(replace(state, students=before), played.stored, batch, carry.levels)
        score = self.score(self._select_scored_outcome(seen, played.stored))
        scored, made = jnp.isfinite(score), carry.teacher_transitions
        last = made.reward.at[-1].add(jnp.where(scored, score, 0))
        made = replace(made, reward=last, weight=made.weight * scored)
        teacher, of_teacher = self.teacher.learn(carry.teacher, made, key_teacher)
        after = replace(state, students=students, teacher=base.drop_shared_fields(teacher))
        both = jax.vmap(lambda one: one.metrics())(played) | metrics
        totals = {name: both[name].sum() for name in COUNTS if name in both and name != "episodes"}
        metrics = tree.index(both, 0) | totals
        of_teacher = {f"teacher/{name}": x for name, x in of_teacher.items()}
        return after, metrics | of_teacher | curricula.summarize_levels(seen, score)

    def compute_outcome(self, state: PAIREDState, rollouts: Transition, batches: Batch, levels: Level) -> Outcome:
        """Return the outcome of student 0 on the levels.

        Args:
            state: State of the workflow.
            rollouts: Rollouts of the students, leaves [num_students, num_steps, num_envs, ...].
            batches: Batches of these rollouts.
            levels: Levels, leaves [n, ...].
        """
        rollout, batch = tree.index((rollouts, batches), 0)
        never = jnp.full(self.num_levels, -jnp.inf)
        return curricula.compute_outcome(self.student, self.main_student_state(state), rollout, batch, levels, never)

    def evaluation_metrics(self, state: PAIREDState, played: Rollout) -> Metrics:
        metrics = self.student.evaluation_metrics(self.main_student_state(state), tree.index(played, 0))
        return metrics | {MEASURED_STEPS: played.stats.steps[1:].sum()}

    def policy(self, state: PAIREDState, explores: bool = False) -> PolicyFn:
        """Return the policy of student 0."""
        return self.student.policy(self.main_student_state(state), explores)

    def inherit(self, state: PAIREDState, parent: PAIREDState) -> PAIREDState:
        """Return the state of the parent, including its teacher, with the environments of the inheriting state."""

        def inherit_student(student: OnPolicyState, parent: OnPolicyState) -> OnPolicyState:
            return base.drop_shared_fields(self.student.inherit(student, parent))

        return replace(
            parent, students=self.map_students(state, inherit_student, parent.students), env_params=state.env_params
        )

    def _plan_all_students(self, state: PAIREDState, plan: Callable[[OnPolicyState], RolloutPlan]) -> RolloutPlan:
        """Return the plan of a student for all of them, with the params of each, leaves [num_students, ...]."""
        return replace(
            plan(self.main_student_state(state)), params=self.map_students(state, lambda student: plan(student).params)
        )

    def _select_scored_outcome(self, seen: Outcome, rollouts: Transition) -> Outcome:
        """Return the outcome that the score uses: that of student 0, or the rewards of all students."""
        if self.score.min_students == 1:
            return seen
        reward = jnp.where(rollouts.weight > 0, rollouts.reward, jnp.nan)
        return replace(seen, reward=reward, ended=rollouts.is_done)
