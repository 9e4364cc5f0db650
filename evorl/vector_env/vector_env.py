"""Vectorized environments of a workflow, shared by rollouts and evaluations so that physics has one batch size."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int, PyTree

from evorl import mesh, tree
from evorl.errors import OptionError, require, require_int, to_printable
from evorl.replay import distribution
from evorl.spaces import Box, Space, choice_counts, group_sizes, groups, leaf_spaces, random_action
from evorl.types import (
    Actor,
    Env,
    HasActionProbabilities,
    HasStateMetrics,
    Key,
    Memory,
    Metrics,
    MultiAgentActor,
    Params,
)
from evorl.vector_env import host_rollout, rollout_loop
from evorl.vector_env.env_batch import BatchPolicyFn, EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats
from evorl.vector_env.rollout_plan import UNLIMITED, RolloutPlan, TransitionStore
from evorl.vector_env.starts import ResetStarts


@dataclass(frozen=True)
class Behaviour:
    """Behavior of an agent in one environment: exploring, greedy or random.

    `preprocess` maps an environment's observation to the agent's. `materialize` maps the actors of a plan,
    leaves [actors, ...], to the values that are held during the rollout. `decode_params` maps one actor's
    held value to its parameters at each call, so that the actors can share a common part.
    """

    env: Env
    agent: Actor
    preprocess: Callable[[Any], Any] = lambda obs: obs
    materialize: Callable[[Any], Any] = lambda actors: actors
    decode_params: Callable[[Any], Params] = lambda actor: actor

    def act(
        self, params: Params, explores: bool | Array | None, random: Any, obs: Any, memory: Memory, key: Key
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """Return an action, the recurrent state after it, and the extras for learning.

        The action is greedy, exploring if `explores`, or random if `random`; None means never.
        """
        params, seen = self.decode_params(params), self.preprocess(obs)
        greedy, _, _ = self.agent.mode(params, seen, memory, key)
        action, memory, extras = self.agent.act(params, seen, memory, key)
        action = greedy if explores is None else tree.select(jnp.asarray(explores), action, greedy)
        if random is not None:  # else no random action is computed
            drawn = random_action(self.env.action_space, self.env.observation_space, obs, key)
            action = tree.select(jnp.asarray(random), drawn, action)
        return action, memory, extras

    def bind_params(self, params: Params, explores: bool) -> "BoundPolicy":
        """Return a policy (obs, memory, key) -> (action, memory, extras) with these parameters."""
        return BoundPolicy(self, params, explores)


@dataclass(frozen=True, eq=False)
class BoundPolicy:
    """Policy of one environment: a behavior with the parameters of one actor."""

    behaviour: Behaviour
    params: Params
    explores: bool

    def __call__(self, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        return self.behaviour.act(self.params, self.explores, None, obs, memory, key)

    def action_probabilities(self, obs: Any) -> Any:
        """Return the action probabilities for an observation, [choices]; with groups, [members, choices] by group.

        Raises:
            OptionError: If the agent is recurrent or defines no probabilities.
        """
        by = self.behaviour
        given = by.decode_params(self.params), by.preprocess(obs)
        return action_probabilities(by.agent, by.env.action_space, *given, self.explores)


def action_probabilities(agent: Actor, space: Space, params: Params, obs: Any, explores: bool = True) -> Any:
    """Return an agent's action probabilities, with or without exploration, as `BoundPolicy` does."""
    name = type(agent).__name__
    if jax.tree.leaves(jax.eval_shape(agent.initial_memory)):
        raise OptionError(
            f"agent={name}: is recurrent; action probabilities need a policy without recurrent state, core=none"
        )
    explores = explores or agent.mode == agent.act  # agents such as Random, whose mode is act, always sample
    if explores and isinstance(agent, HasActionProbabilities):
        return agent.action_probabilities(params, obs)
    if explores:
        raise OptionError(f"agent={name}: defines no action probabilities; use explores=false for its greedy actions")
    action, _, _ = agent.mode(params, obs, agent.initial_memory(), jax.random.key(0))
    sides = {name: choice_counts(of.space)[0] for name, of in groups(space).items()}
    return jax.tree.map(jax.nn.one_hot, action, sides or choice_counts(space)[0])


@struct.dataclass
class Rollout:
    """Result of a rollout of n environments."""

    plan: RolloutPlan
    envs: EnvInstance | None  # at the end, leaves [n, ...]; None if they are not needed any more
    stats: EpisodeStats  # leaves [n]
    stored: PyTree
    state_metrics: Metrics  # env.state_metrics of the final states, mean over the environments

    def metrics(self) -> Metrics:
        """Return counts and means over all environments."""
        return self.stats.metrics() | self.state_metrics


@dataclass(frozen=True)
class VectorEnv:
    """Vectorized environments for one or several actors.

    Each actor acts in num_envs / num_actors consecutive environments. They may be one of `num_blocks` blocks, which
    run one after the other.
    """

    env: Env
    agent: Actor
    _: KW_ONLY
    num_envs: int
    eval_episodes: int
    scan_length: int
    num_actors: int = 1
    num_rollout_starts: int = 1  # starts per environment in a rollout
    num_blocks: int = 1

    def __post_init__(self) -> None:
        wanted = group_sizes(self.env.action_space)
        given = dict(self.agent.groups) if isinstance(self.agent, MultiAgentActor) else {}
        if wanted != given:
            env, agent = type(self.env).__name__, type(self.agent).__name__
            plays = (
                f"the groups {given}"
                if given
                else "a single-agent environment; use agent=ippo (docs/howto/multi_agent.md)"
            )
            raise OptionError(
                f"env={env}: has {f'the groups {wanted}' if wanted else 'a single agent'}, and {agent} needs {plays}"
            )
        require_int("max_episode_steps", self.env.max_episode_steps)
        for name in ("observation_space", "action_space"):
            own, its = getattr(self.env, name), getattr(self.agent, name, None)
            for_it = f"must have the {name} of {type(self.env).__name__}, {to_printable(own)}"
            require(its is None or its == own, "agent", f"{type(self.agent).__name__} for {to_printable(its)}", for_it)
        for leaf in leaf_spaces(self.env.action_space):
            low, high = leaf.bounds
            wide = isinstance(leaf, Box) and not (low < high).all()
            require(not wide, "action_space", to_printable(leaf), "must have low below high")

    @property
    def max_starts(self) -> int:
        """Return the maximum number of starts per environment; in an evaluation, each episode has its own."""
        return max(self.num_rollout_starts, -(-self.eval_episodes // self.num_envs))

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the size of the axis that can be sharded: environments, or actors together with their environments."""
        return {mesh.ENVS: self.num_actors if self.num_actors > 1 else self.num_envs}

    def make_starts(self, every: bool | Array = False) -> ResetStarts:
        """Return the starts of a rollout, or with `every` as many starts as an evaluation needs."""
        most = self.max_starts
        return ResetStarts(jnp.where(every, most, self.num_rollout_starts), most)

    def divide(self, num_blocks: int) -> "VectorEnv":
        """Return one of several equal blocks of the actors and their environments.

        Args:
            num_blocks: Number of blocks, which divides the number of actors.
        """
        envs, actors = self.num_envs // num_blocks, self.num_actors // num_blocks
        return replace(self, num_envs=envs, num_actors=actors, num_blocks=num_blocks)

    def make_env_batch(self, env_params: Any) -> EnvBatch:
        """Return the batch of environments with these environment parameters."""
        return EnvBatch(self.env, env_params, self.agent.initial_memory(), self.num_envs, num_blocks=self.num_blocks)

    def plan_evaluation(
        self, params: Params, explores: Any = None, random: Any = None, stores: Any = None
    ) -> RolloutPlan:
        """Plan eval_episodes whole episodes of actors with params, leaves [actors, ...], each from its own start."""
        return RolloutPlan(
            self.make_starts(every=True),
            episodes=split_evenly(self.eval_episodes, self.num_envs),
            steps=UNLIMITED,
            params=params,
            explores=explores,
            random_actions=random,
            stores=stores,
            releases=True,
        )

    def init_blank_envs(self, params: Params, env_params: Any) -> tuple[EnvInstance, Any]:
        """Return environments before their first start, zeros [n, ...], and the shapes of one transition.

        No environment step is computed. Raises OptionError if a reward is not a scalar, as learning and
        fitness require.
        """
        world = self.make_env_batch(env_params)
        policy = jax.vmap(Behaviour(self.env, self.agent).bind_params(params, True))

        def trace_step() -> tuple[EnvInstance, Any]:
            keys = jax.random.split(jax.random.key(0), self.num_envs)
            envs = host_rollout.allocate_pending_step(world, policy, world.init_envs(world.reset(keys)))
            return envs, tree.index(world.interact(policy, envs, keys)[1], 0)

        envs, row = jax.eval_shape(trace_step)
        wanted = {name: (n,) for name, n in group_sizes(self.env.action_space).items()} or ()
        if jax.tree.map(jnp.shape, row.reward) != wanted:
            given = jax.tree.map(lambda x: list(x.shape), row.reward)
            raise OptionError(f"env: the reward has shape {given}, must be a scalar; use LinearReward(env, weights)")
        return tree.zeros_like(envs), row

    def batch_policy(self, behaviour: Behaviour, plan: RolloutPlan) -> BatchPolicyFn:
        """Return the policy that acts in all environments."""

        def act(params: Params, explores: Any, obs: Any, memory: Memory, key: Key) -> Any:
            return behaviour.act(params, explores, plan.random_actions, obs, memory, key)

        if self.num_actors == 1:
            only = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, plan.explores)
            return jax.vmap(partial(act, tree.index(plan.params, 0), only))
        of_each = 0 if plan.explores is not None and jnp.ndim(plan.explores) else None
        if self.num_actors == self.num_envs:
            each = jax.vmap(act, (0, of_each, 0, 0, 0))
            return lambda obs, memory, keys: each(plan.params, plan.explores, obs, memory, keys)
        several = jax.vmap(jax.vmap(act, (None, None, 0, 0, 0)), (0, of_each, 0, 0, 0))

        def policy(obs: Any, memory: Memory, keys: Key) -> Any:
            by_actor = lambda x: x.reshape(self.num_actors, -1, *x.shape[1:])  # noqa: E731
            rows = jax.tree.map(by_actor, (obs, memory, keys))
            return tree.merge_axes(several(plan.params, plan.explores, *rows))

        return policy

    def rollout(
        self,
        behaviour: Behaviour,
        env_params: Any,
        plan: RolloutPlan,
        envs: EnvInstance | None,
        key: Key,
        store: TransitionStore[Any],
    ) -> Rollout:
        """Run a rollout plan, from the state of envs, or from new starts if it restarts or envs is None."""
        shards = mesh.count_shards(mesh.ENVS)
        each = replace(self, num_envs=self.num_envs // shards, num_actors=max(self.num_actors // shards, 1))

        def rollout_shard(
            plan: RolloutPlan, envs: EnvInstance | None, into: Any, key: Key
        ) -> tuple[EnvInstance, EpisodeStats, Any]:
            world = replace(each.make_env_batch(env_params), num_shards=shards)
            plan = replace(plan, params=behaviour.materialize(plan.params))
            return rollout_loop.rollout(
                world, each.batch_policy(behaviour, plan), plan, envs, key, replace(store, buffer=into)
            )

        todo = plan
        if shards > 1 and plan.seed_group is None:
            todo = replace(plan, seed_group=jnp.arange(self.num_envs))
        into = distribution.divide_rows(store.buffer, shards)
        leads, rows = todo.sharded_leaves(), distribution.find_row_specs(into)
        whole = mesh.shard_over_axis(rollout_shard, mesh.ENVS, (leads, True, rows, False), (True, True, rows))
        envs, stats, stored = whole(todo, envs, into, key)
        described = {}
        if isinstance(self.env, HasStateMetrics):
            described = tree.mean(jax.vmap(self.env.state_metrics)(envs.env_state))
        return Rollout(plan, envs, stats, distribution.join_rows(stored), described)


def split_evenly(total: int, n: int) -> Int[Array, " n"]:
    """Split a total into n whole numbers, as evenly as possible."""
    share, rest = divmod(total, n)
    return share + (jnp.arange(n) < rest)
