"""Programs of distributed rollouts: one for rollouts in a part of the environments, and one for learning."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import PyTree

from evorl import tree
from evorl.distributed import task as names
from evorl.distributed.task import FetchFn, Task, Value
from evorl.distributed.values import pack_value, unpack_value
from evorl.normalize import RunningStatistics
from evorl.training.devices import compiler_options
from evorl.types import Key, Metrics, Numbers
from evorl.vector_env import Rollout
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


@struct.dataclass
class LearnerState:
    """State of the learner: that of the workflow, and the observation statistics of the stale policies."""

    state: OnPolicyState
    # observation statistics before each of the last `staleness` iterations, leaves [staleness, ...]
    stale_obs_statistics: RunningStatistics | None


@dataclass(frozen=True)
class RolloutSpec:
    """Specification that all rollouts of a training have in common."""

    workflow: OnPolicy
    parts: int  # number of parts of the environments
    numbers: Numbers
    env_params: PyTree

    def build_programs(self) -> "RolloutPrograms":
        return RolloutPrograms(self)


class RolloutPrograms:
    """Programs that compute rollouts and learn from them, with functions of the workflow that are compiled once."""

    def __init__(self, spec: RolloutSpec) -> None:
        self.spec, self.workflow = spec, spec.workflow
        sizes = {"num_envs": self.workflow.num_envs // spec.parts, "batch_size": 0, "staleness": 0}
        episodes = -(-self.workflow.eval_episodes // spec.parts)  # the same number of starts per environment
        self.part_sizes = sizes | {"eval_episodes": episodes}
        self.part = replace(self.workflow, **self.part_sizes)
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun, self._played, self.learned = map(
            compiled, (self._init_learner, self._rollout, self._learn_from_rollouts)
        )
        self._given = spec.numbers, spec.env_params

    def init_learner(self, key: Key) -> LearnerState:
        """Return the initial state of the learner."""
        return self._begun(key, *self._given)

    def get_acting_policy(self, learner: LearnerState, place: int) -> tuple[Any, Any]:
        """Return one of the policies that may still act: the actor's params, and observation statistics.

        `place` is 0 for the oldest policy, and staleness for the newest.
        """
        state = learner.state
        if place == self.workflow.staleness:
            return state.agent.actor.params, state.obs_statistics
        return tree.index((state.stale_params, learner.stale_obs_statistics), place)

    def split_envs(self, envs: Any) -> list[Value]:
        """Split environments, leaves [num_envs, ...], into the parts."""
        n = self.part.num_envs
        return [pack_value(tree.index(envs, slice(i * n, i * n + n))) for i in range(self.spec.parts)]

    @cached_property
    def policy_shapes(self) -> Any:
        """Return the shapes of a policy that acts."""
        return jax.eval_shape(
            lambda learner: self.get_acting_policy(learner, self.workflow.staleness), self.learner_shapes
        )

    @cached_property
    def env_shapes(self) -> Any:
        """Return the shapes of the environments of a part."""
        return jax.eval_shape(lambda envs: tree.index(envs, slice(self.part.num_envs)), self.learner_shapes.state.envs)

    @cached_property
    def rollout_shapes(self) -> Any:
        """Return the shapes of the result of a task, whose first leaves are those of the environments."""
        return self._played.eval_shape(
            *self._given, self.policy_shapes, self.env_shapes, jnp.int32(0), jax.random.key(0)
        )

    @cached_property
    def learner_shapes(self) -> LearnerState:
        """Return the shapes of the state of the learner."""
        return self._begun.eval_shape(jax.random.key(0), *self._given)

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        policy = unpack_value(self.policy_shapes, fetch(names.format_policy_name(int(task.payload))))
        envs = unpack_value(self.env_shapes, fetch(names.format_envs_name(task.version, task.part)))
        key = jax.random.wrap_key_data(jnp.asarray(task.key))
        return pack_value(self._played(*self._given, policy, envs, jnp.int32(task.version), key))

    def _init_learner(self, key: Key, numbers: Any, env_params: Any) -> LearnerState:
        state, staleness = self.workflow.init(key, numbers, env_params), self.workflow.staleness
        return LearnerState(state, tree.broadcast(state.obs_statistics, staleness) if staleness else None)

    def _rollout(self, numbers: Any, env_params: Any, policy: Any, envs: Any, iteration: Any, key: Key) -> Any:
        """Run a rollout in a part of the environments.

        Return the environments, their statistics, the transitions [num_steps, num_envs / parts, ...], and
        state metrics.
        """
        params, statistics = policy
        state = self.part.init(jax.random.key(0), numbers, env_params)
        agent = replace(state.agent, actor=replace(state.agent.actor, params=params))
        state = replace(state, agent=agent, obs_statistics=statistics, envs=envs, iteration=iteration)
        part = replace(self.workflow.bound(state), **self.part_sizes)  # schedules count the steps of all parts
        played = part.rollout(state, part.plan(state, key)[0], key)[1]
        return played.envs, played.stats, played.stored, played.state_metrics

    def _learn_from_rollouts(
        self, learner: LearnerState, rollouts: list[Any], key: Key
    ) -> tuple[LearnerState, Metrics]:
        """Learn from the rollouts of all parts of one iteration."""

        def concatenate_parts(trees: Any, axis: int) -> Any:
            return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *trees)

        envs, stats, stored, described = zip(*rollouts, strict=True)
        workflow = self.workflow.bound(learner.state)
        played = Rollout(
            workflow.plan(learner.state, key)[0],
            concatenate_parts(envs, 0),
            concatenate_parts(stats, 0),
            concatenate_parts(stored, 1),
            tree.mean(tree.stack([*described])),
        )
        state, metrics = workflow.learn_from(learner.state, None, played, key)
        seen = learner.stale_obs_statistics
        if self.workflow.staleness:
            seen = tree.shift_in(seen, learner.state.obs_statistics)
        return LearnerState(state, seen), metrics
