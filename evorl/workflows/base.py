"""What the workflows share: acting, evaluating, and one program for both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from evorl import rollout, tree
from evorl.errors import require
from evorl.rollout import UNLIMITED, EnvSlot, EpisodeStats
from evorl.types import (
    ActorCritic,
    Advances,
    Agent,
    Describes,
    Env,
    Evolver,
    FromMembers,
    Hyperparams,
    Key,
    Memory,
    Metrics,
    Params,
    State,
    Transition,
    Workflow,
)

Body = Callable[[Array, Any], tuple[Any, Metrics]]
Store = Callable[[Any, Transition, Array], Any]  # as rollout.play takes it


def advance(workflow: Workflow, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
    """workflow.advance, or the same of a workflow that has only step and evaluate, at the price of compiling both."""
    if isinstance(workflow, Advances):
        return workflow.advance(state, key, evaluating)
    shapes = jax.eval_shape(lambda: (workflow.step(state, key)[1], workflow.evaluate(state, key)))
    no_step, no_evaluation = tree.zeros(shapes)
    return jax.lax.cond(
        evaluating,
        lambda: (state, no_step, workflow.evaluate(state, key)),
        lambda: (*workflow.step(state, key), no_evaluation),
    )


def repeat(
    times: Int[Array, ""], body: Body, carry: Any, early_stop: Callable[[Metrics], Any] = lambda metrics: False
) -> tuple[Any, Metrics, Int[Array, ""]]:
    """carry, metrics <- body(i, carry) for i < times, until the metrics are early_stop.

    Returns the carry, the mean metrics, 0 where times is 0, and how often that was.
    """
    body = jax.jit(body)  # so that its shapes and its code come from one trace
    zeros = tree.zeros(jax.eval_shape(body, jnp.int32(0), carry)[1])

    def add(i: Array, loop: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, metrics = body(i, loop[0])
        return carry, jax.tree.map(jnp.add, loop[1], metrics), i + 1, jnp.asarray(early_stop(metrics))

    start = carry, zeros, jnp.int32(0), jnp.bool_(False)
    carry, sums, done, _ = tree.repeat(times, add, start, lambda loop: ~loop[3])
    return carry, jax.tree.map(lambda x: x / jnp.maximum(done, 1), sums), done


def begin(evolver: Evolver, key: Key, mean: Params, draw: Callable[[Key], Params], hyperparams: Hyperparams) -> State:
    """The first state of an evolver: around mean, or with draws as its members where it takes them."""
    if not isinstance(evolver, FromMembers):
        return evolver.init(key, mean, hyperparams)
    key_members, key = jax.random.split(key)
    members = jax.vmap(draw)(jax.random.split(key_members, evolver.population_size))
    return evolver.from_members(key, members, mean, hyperparams)


def behaviour(
    env: Env, agent: Agent, hyperparams: Hyperparams, random: bool | Array, exploring: bool | Array
) -> Callable[[Params, Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]:
    """How one slot acts, (params, obs, memory, key) -> (action, memory, extras): at random, exploring or greedily."""

    def policy(params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        greedy, _, _ = agent.mode(params, obs, memory, key, hyperparams)
        action, next_memory, extras = agent.act(params, obs, memory, key, hyperparams)
        action = tree.where(jnp.asarray(exploring), action, greedy)
        if random is not False:
            action = tree.where(jnp.asarray(random), env.action_space.sample(key), action)  # one of them draws
        return action, next_memory, extras

    return policy


def revived(own: Any, parent: Any, axes: Any = 0) -> Any:
    """own, but where one of its n slots holds NaN that of parent; axes say where the slots are, as in jax.vmap."""
    return jax.vmap(lambda a, b: tree.where(tree.has_no_nan(a), a, b), (axes, axes), axes)(own, parent)


def descend_actor(
    agent: ActorCritic, state: Any, batch: Transition, key: Key, hyperparams: Hyperparams
) -> tuple[Any, Metrics]:
    """A gradient step of the actor on its own loss."""
    return agent.update_actor(
        state, lambda params: agent.actor_loss(params, state, batch, key, hyperparams), hyperparams
    )


def shares(total: int, n: int) -> Int[Array, " n"]:
    """n whole numbers that sum to total, as even as can be."""
    share, rest = divmod(total, n)
    return share + (jnp.arange(n) < rest)


def work(workflow: Any, times: int) -> dict[str, tuple[int, int]]:
    """The least and the most that so many iterations of a workflow take, where it says so."""
    return {name: (times * least, times * most) for name, (least, most) in getattr(workflow, "work", {}).items()}


def check_positive(workflow: Any, *names: str) -> None:
    """Raises OptionError where a named field is below 1, or too large for an index."""
    for name in names:
        value = getattr(workflow, name)
        require(value >= 1, name, value, "must be at least 1")
        require(value <= UNLIMITED, name, value, f"must be at most {UNLIMITED}")


def check_replay(workflow: Any) -> None:
    """Raises OptionError where the replay cannot hold a batch or the random steps."""
    check_positive(workflow, "capacity")
    capacity, batch_size, random_steps = workflow.capacity, workflow.batch_size, workflow.random_steps
    require(capacity >= batch_size, "capacity", capacity, f"must hold a batch, {batch_size}")
    require(0 <= random_steps <= capacity, "random_steps", random_steps, f"must be from 0 to capacity, {capacity}")


@dataclass(frozen=True)
class VectorEnv:
    """The n environments of a workflow: it collects in them and evaluates in them, so that physics has one shape."""

    env: Env
    agent: Agent
    num_slots: int
    rollout_starts: int  # how many new starts a slot may take in one rollout
    eval_episodes: int
    chunk: int

    @property
    def rows(self) -> int:
        """Starts that a slot has at most: in an evaluation each episode has its own."""
        return 1 if self.env.fresh_reset else max(self.rollout_starts, -(-self.eval_episodes // self.num_slots))

    @property
    def eval_quota(self) -> Int[Array, " n"]:
        """Episodes of each slot in an evaluation, which sum to eval_episodes."""
        return shares(self.eval_episodes, self.num_slots)

    def blank(self, params: Params, hyperparams: Hyperparams, env_params: Any) -> tuple[EnvSlot, Any]:
        """Slots before their first start, zeros [n, ...], and the shapes of one transition: no physics runs."""
        keys = jax.random.split(jax.random.key(0), self.num_slots)
        policy = behaviour(self.env, self.agent, hyperparams, False, True)

        def one_step() -> tuple[EnvSlot, Any]:
            slots = rollout.start(self.env, env_params, self.agent.memory(), keys)
            act = jax.vmap(lambda obs, memory, key: policy(params, obs, memory, key))
            return slots, tree.index(rollout.interact(self.env, env_params, act, slots, keys)[1], 0)

        slots, row = jax.eval_shape(one_step)
        return tree.zeros(slots), row

    def play(
        self,
        env_params: Any,
        policy: rollout.Policy,
        key: Key,
        slots: EnvSlot | None,
        restart: Bool[Array, ""] | bool,
        episodes: Int[Array, "..."],
        steps: Int[Array, ""] | int,
        every_row: Bool[Array, ""] | bool,
        store: Store,
        stored: Any,
        common_random_group: Int[Array, " n"] | None = None,
    ) -> tuple[EnvSlot, EpisodeStats, Any]:
        """Plays on from slots, or from new starts where restart or without slots, until each slot has had its episodes
        or steps; every chunk is stored. Where every_row, starts are as many as can be. Slots of the same group, a
        number below n, have common random numbers: they begin alike and meet the same chance; by default each its own.
        """
        key_starts, key_play = jax.random.split(key)
        memory, n = self.agent.memory(), self.num_slots
        drawn = jnp.where(every_row, self.rows, min(self.rollout_starts, self.rows))
        keys_starts, keys = jax.random.split(key_starts, (self.rows, n)), jax.random.split(key_play, n)
        if common_random_group is not None:
            keys_starts, keys = keys_starts[:, common_random_group], keys[common_random_group]
        fresh = rollout.starts(self.env, env_params, memory, keys_starts, drawn)
        first = tree.index(fresh, 0)
        slots = first if slots is None else tree.where(jnp.asarray(restart), first, slots)
        return rollout.play(
            self.env, env_params, policy, memory, slots, fresh, drawn, keys, episodes, steps, self.chunk, store, stored
        )

    def described(self, slots: EnvSlot) -> Metrics:
        """What the environment says of what is being played, as means over the slots."""
        if not isinstance(self.env, Describes):
            return {}
        return tree.mean(jax.vmap(self.env.describe)(slots.env_state))
