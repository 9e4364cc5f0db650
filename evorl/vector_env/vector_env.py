"""The environments of a workflow: it collects in them and evaluates in them, so that physics has one shape."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import mesh, tree
from evorl.errors import OptionError, printable, require, require_whole
from evorl.spaces import Box, Space, choices, groups, leaves, random_action, sizes
from evorl.types import Actor, Chooses, Describes, Env, Hyperparams, Key, Memory, Metrics, Params, Plays
from evorl.vector_env import rollout
from evorl.vector_env.episodes import EnvSlot, EpisodeStats
from evorl.vector_env.rollout import UNLIMITED, Plan, Store
from evorl.vector_env.starts import FromParams
from evorl.vector_env.world import Policy, World


@dataclass(frozen=True)
class Behaviour:
    """How an agent acts in one environment: exploring, greedily or at random. `see` makes of an observation its own.

    What a plan has of actors, leaves [actors, ...], `draw` makes what is held of them while they play, and of what is
    held of one `express` makes its parameters at each call, so that these may share what all have in common.
    """

    env: Env
    agent: Actor
    hyperparams: Hyperparams
    see: Callable[[Any], Any] = lambda obs: obs
    draw: Callable[[Any], Any] = lambda actors: actors
    express: Callable[[Any], Params] = lambda actor: actor

    def act(
        self, params: Params, explores: bool | Array | tuple[()], random: Any, obs: Any, memory: Memory, key: Key
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """An action, the memory after it, and what learning needs beside; explores and random are () for never."""
        params, seen = self.express(params), self.see(obs)
        greedy, _, _ = self.agent.mode(params, seen, memory, key, self.hyperparams)
        action, memory, extras = self.agent.act(params, seen, memory, key, self.hyperparams)
        action = greedy if isinstance(explores, tuple) else tree.where(jnp.asarray(explores), action, greedy)
        if not isinstance(random, tuple):  # one of them draws
            drawn = random_action(self.env.action_space, self.env.observation_space, obs, key)
            action = tree.where(jnp.asarray(random), drawn, action)
        return action, memory, extras

    def policy(self, params: Params, explores: bool) -> "ActingBy":
        """(obs, memory, key) -> (action, memory, extras), with these params."""
        return ActingBy(self, params, explores)


@dataclass(frozen=True, eq=False)
class ActingBy:
    """A behaviour with the parameters of one actor, as a policy of one slot."""

    behaviour: Behaviour
    params: Params
    explores: bool

    def __call__(self, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        return self.behaviour.act(self.params, self.explores, (), obs, memory, key)

    def probabilities(self, obs: Any) -> Any:
        """How likely it takes each choice after an observation, [choices]; of a game by group, [members, choices].

        Raises OptionError where its agent remembers, or tells no probabilities.
        """
        by = self.behaviour
        given = by.express(self.params), by.see(obs), by.hyperparams
        return chances(by.agent, by.env.action_space, *given, self.explores)


def chances(
    agent: Actor, space: Space, params: Params, obs: Any, hyperparams: Hyperparams, explores: bool = True
) -> Any:
    """How likely an agent takes each choice of an action of a space, exploring or not, as ActingBy.probabilities."""
    name = type(agent).__name__
    if jax.tree.leaves(jax.eval_shape(agent.memory)):
        raise OptionError(f"agent={name}: remembers, and has no probabilities by what it sees now; core=none")
    explores = explores or agent.mode == agent.act  # as those at random do
    if explores and isinstance(agent, Chooses):
        return agent.probabilities(params, obs, hyperparams)
    if explores:
        raise OptionError(f"agent={name}: tells no probabilities of actions; explores=false has those it prefers")
    action, _, _ = agent.mode(params, obs, agent.memory(), jax.random.key(0), hyperparams)
    sides = {name: choices(of.space)[0] for name, of in groups(space).items()}
    return jax.tree.map(jax.nn.one_hot, action, sides or choices(space)[0])


@struct.dataclass
class Played:
    """What n slots did."""

    plan: Any  # a Plan
    slots: Any  # as they are then, leaves [n, ...]; () where they are of no use any more
    stats: EpisodeStats  # leaves [n]
    stored: Any
    described: Metrics  # what the environment says of what is being played, as means over the slots

    def metrics(self) -> Metrics:
        """Counts and means over all slots."""
        return self.stats.metrics() | self.described


@dataclass(frozen=True)
class VectorEnv:
    """n environments for as many actors, or for some of which each has n / actors of them side by side."""

    env: Env
    agent: Actor
    num_slots: int
    actors: int
    rollout_starts: int  # how many starts of a slot are drawn for a rollout
    eval_episodes: int
    chunk: int

    def __post_init__(self) -> None:
        wanted = sizes(self.env.action_space)
        given = dict(self.agent.groups) if isinstance(self.agent, Plays) else {}
        if wanted != given:
            env, agent = type(self.env).__name__, type(self.agent).__name__
            plays = f"a game of {given}" if given else "for one; a team plays games: agent=ippo (docs/games.md)"
            raise OptionError(f"env={env}: is of {wanted or 'one'}, and {agent} plays {plays}")
        require_whole("max_episode_steps", self.env.max_episode_steps)
        for name in ("observation_space", "action_space"):
            own, its = getattr(self.env, name), getattr(self.agent, name, None)
            for_it = f"must have the {name} of {type(self.env).__name__}, {printable(own)}"
            require(its is None or its == own, "agent", f"{type(self.agent).__name__} for {printable(its)}", for_it)
        for leaf in leaves(self.env.action_space):
            low, high = leaf.bounds
            wide = isinstance(leaf, Box) and not (low < high).all()
            require(not wide, "action_space", printable(leaf), "must have low below high, so that there is a choice")

    @property
    def most_starts(self) -> int:
        """How many starts of a slot are drawn at most: in an evaluation each episode has its own."""
        return max(self.rollout_starts, -(-self.eval_episodes // self.num_slots))

    @property
    def parallel(self) -> dict[str, int]:
        """What is independent: the slots, or the actors, each of which keeps its slots together."""
        return {mesh.SLOTS: self.actors if self.actors > 1 else self.num_slots}

    @property
    def eval_quota(self) -> Int[Array, " n"]:
        """Episodes of each slot in an evaluation, which sum to eval_episodes."""
        return shares(self.eval_episodes, self.num_slots)

    def starts(self, every: bool | Array = False) -> FromParams:
        """Those that a rollout draws, or as many as can be drawn."""
        most = self.most_starts
        return FromParams(jnp.where(every, most, self.rollout_starts), most)

    def world(self, env_params: Any) -> World:
        """The environments with these params."""
        return World(self.env, env_params, self.agent.memory(), self.num_slots)

    def exam(self, params: Params, explores: Any = (), random: Any = (), stores: Any = ()) -> Plan:
        """eval_episodes whole episodes of actors with params, leaves [actors, ...], from a start each."""
        quota = self.eval_quota
        return Plan(self.starts(True), True, quota, UNLIMITED, (), params, explores, random, stores, leaves=True)

    def blank(self, params: Params, hyperparams: Hyperparams, env_params: Any) -> tuple[EnvSlot, Any]:
        """Slots before their first start, zeros [n, ...], and the shapes of one transition: no physics runs.

        Raises OptionError where a reward is not one number, which learning and fitness are about.
        """
        world = self.world(env_params)
        policy = jax.vmap(Behaviour(self.env, self.agent, hyperparams).policy(params, True))

        def one_step() -> tuple[EnvSlot, Any]:
            keys = jax.random.split(jax.random.key(0), self.num_slots)
            slots = world.sending(policy, world.slots(world.reset(keys)))
            return slots, tree.index(world.interact(policy, slots, keys)[1], 0)

        slots, row = jax.eval_shape(one_step)
        wanted = {name: (n,) for name, n in sizes(self.env.action_space).items()} or ()
        if jax.tree.map(jnp.shape, row.reward) != wanted:
            given = jax.tree.map(lambda x: list(x.shape), row.reward)
            raise OptionError(
                f"env: a reward of shape {given} is not one number; Scalarized(env, weights) makes it one"
            )
        return tree.zeros(slots), row

    def acting(self, behaviour: Behaviour, plan: Plan) -> Policy:
        """How all slots act."""

        def act(params: Params, explores: Any, obs: Any, memory: Memory, key: Key) -> Any:
            return behaviour.act(params, explores, plan.random, obs, memory, key)

        if self.actors == 1:
            only = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, plan.explores)
            return jax.vmap(partial(act, tree.index(plan.params, 0), only))
        of_each = 0 if not isinstance(plan.explores, tuple) and jnp.ndim(plan.explores) else None
        if self.actors == self.num_slots:
            each = jax.vmap(act, (0, of_each, 0, 0, 0))
            return lambda obs, memory, keys: each(plan.params, plan.explores, obs, memory, keys)
        several = jax.vmap(jax.vmap(act, (None, None, 0, 0, 0)), (0, of_each, 0, 0, 0))

        def policy(obs: Any, memory: Memory, keys: Key) -> Any:
            by_actor = lambda x: x.reshape(self.actors, -1, *x.shape[1:])  # noqa: E731
            rows = jax.tree.map(by_actor, (obs, memory, keys))
            return tree.merge_axes(several(plan.params, plan.explores, *rows))

        return policy

    def play(
        self, behaviour: Behaviour, env_params: Any, plan: Plan, slots: EnvSlot | None, key: Key, store: Store[Any]
    ) -> Played:
        """Plays as planned, from slots or, where the plan restarts or without slots, from new starts."""
        shards = mesh.shards(mesh.SLOTS)
        each = replace(self, num_slots=self.num_slots // shards, actors=max(self.actors // shards, 1))

        def part(plan: Plan, slots: EnvSlot | None, into: Any, key: Key) -> tuple[EnvSlot, EpisodeStats, Any]:
            world, plan = replace(each.world(env_params), shards=shards), plan.own(self.num_slots, shards)
            plan = replace(plan, params=behaviour.draw(plan.params))
            return rollout.play(world, each.acting(behaviour, plan), plan, slots, key, replace(store, into=into))

        whole = mesh.spread(part, mesh.SLOTS, (False, True, False, False), (True, True, False))
        slots, stats, stored = whole(plan, slots, store.into, key)
        described = {}
        if isinstance(self.env, Describes):
            described = tree.mean(jax.vmap(self.env.describe)(slots.env_state))
        return Played(plan, slots, stats, stored, described)


def shares(total: int, n: int) -> Int[Array, " n"]:
    """n whole numbers that sum to total, as even as can be."""
    share, rest = divmod(total, n)
    return share + (jnp.arange(n) < rest)
