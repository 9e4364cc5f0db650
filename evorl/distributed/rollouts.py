"""What computes rollouts, which are the play of an on-policy workflow in a part of its environments; what learns."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl import tree
from evorl.distributed import task as names
from evorl.distributed.task import Fetch, Task, Value
from evorl.distributed.values import packed, unpacked
from evorl.training.devices import compiler_options
from evorl.types import Key, Metrics
from evorl.vector_env import Played
from evorl.workflows.on_policy import OnPolicy, OnPolicyState


@struct.dataclass
class Learner:
    """What learns: the state of the workflow, and what policies that may act yet have of observations."""

    state: OnPolicyState
    seen: Any  # statistics of observations before each of the last `staleness` iterations, leaves [staleness, ...]


@dataclass(frozen=True)
class RolloutSpec:
    """What all rollouts of a training have in common."""

    workflow: OnPolicy
    parts: int  # in which its environments are played
    hyperparams: Any
    env_params: Any

    def programs(self) -> "RolloutPrograms":
        return RolloutPrograms(self)


class RolloutPrograms:
    """Computes rollouts and learns from them, by functions of the workflow that are compiled once."""

    def __init__(self, spec: RolloutSpec) -> None:
        self.spec, self.workflow = spec, spec.workflow
        sizes = {"num_envs": self.workflow.num_envs // spec.parts, "batch_size": 0, "staleness": 0}
        episodes = -(-self.workflow.eval_episodes // spec.parts)  # so that as many starts are drawn of each slot
        self.part = replace(self.workflow, **sizes, eval_episodes=episodes)
        compiled = partial(jax.jit, compiler_options=compiler_options())
        self._begun, self._played, self.learned = map(compiled, (self._begin, self._play, self._learn))
        self._given = spec.hyperparams, spec.env_params

    def begun(self, key: Key) -> Learner:
        """What learns, before it has."""
        return self._begun(key, *self._given)

    def acting(self, learner: Learner, place: int) -> tuple[Any, Any]:
        """The policy of some iterations ago, of all that may act yet in its place from 0, the oldest, to staleness.

        Params of the actor, and statistics of observations.
        """
        state = learner.state
        if place == self.workflow.staleness:
            return state.agent.actor.params, state.statistics
        return tree.index((state.older, learner.seen), place)

    def parted(self, slots: Any) -> list[Value]:
        """Slots [num_envs, ...] by part."""
        n = self.part.num_envs
        return [packed(tree.index(slots, slice(i * n, i * n + n))) for i in range(self.spec.parts)]

    @cached_property
    def policy(self) -> Any:
        """The shapes of a policy that acts."""
        return jax.eval_shape(lambda learner: self.acting(learner, self.workflow.staleness), self.shapes)

    @cached_property
    def slots(self) -> Any:
        """The shapes of the slots of a part."""
        return jax.eval_shape(lambda slots: tree.index(slots, slice(self.part.num_envs)), self.shapes.state.slots)

    @cached_property
    def rollout(self) -> Any:
        """The shapes of what comes out of a task, whose first leaves are those of the slots."""
        return self._played.eval_shape(*self._given, self.policy, self.slots, jnp.int32(0), jax.random.key(0))

    @cached_property
    def shapes(self) -> Learner:
        """Of what learns."""
        return self._begun.eval_shape(jax.random.key(0), *self._given)

    def __call__(self, task: Task, fetch: Fetch) -> Value:
        policy = unpacked(self.policy, fetch(names.policy(int(task.given))))
        slots = unpacked(self.slots, fetch(names.slots(task.version, task.part)))
        key = jax.random.wrap_key_data(jnp.asarray(task.key))
        return packed(self._played(*self._given, policy, slots, jnp.int32(task.version), key))

    def _begin(self, key: Key, hyperparams: Any, env_params: Any) -> Learner:
        state, staleness = self.workflow.init(key, hyperparams, env_params), self.workflow.staleness
        return Learner(state, tree.broadcast(state.statistics, staleness) if staleness else ())

    def _play(self, hyperparams: Any, env_params: Any, policy: Any, slots: Any, iteration: Any, key: Key) -> Any:
        """The slots, what they did, transitions [num_steps, num_envs / parts, ...] and what the environment tells."""
        params, statistics = policy
        state = self.part.init(jax.random.key(0), hyperparams, env_params)
        agent = replace(state.agent, actor=replace(state.agent.actor, params=params))
        state = replace(state, agent=agent, statistics=statistics, slots=slots, iteration=iteration)
        state = replace(state, hyperparams=self.workflow.now(state))  # a part counts steps of its own alone
        played = self.part.play(state, self.part.plan(state, key)[0], key)[1]
        return played.slots, played.stats, played.stored, played.described

    def _learn(self, learner: Learner, rollouts: list[Any], key: Key) -> tuple[Learner, Metrics]:
        """What has learned from a rollout in all parts."""

        def beside(trees: Any, axis: int) -> Any:
            return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *trees)

        slots, stats, stored, described = zip(*rollouts, strict=True)
        played = Played((), beside(slots, 0), beside(stats, 0), beside(stored, 1), tree.mean(tree.stack([*described])))
        state, metrics = self.workflow.absorb(learner.state, (), played, key)
        seen = tree.pushed(learner.seen, learner.state.statistics) if self.workflow.staleness else ()
        return Learner(state, seen), metrics
