"""A game as one of its players plays it, against others that are drawn from a pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import tree
from evorl.leagues.acting import ByChance, Cast
from evorl.leagues.grouped import act_as
from evorl.leagues.meta_games import drawn
from evorl.leagues.roles import Role, Roles
from evorl.spaces import Space
from evorl.types import Ends, Env, Key, TimeStep


@struct.dataclass
class Match:
    """Who plays whom: params of Against."""

    game: Any  # params of the game
    player: Any  # [] int32, which of its role's players is the one that plays
    pool: Any  # by role what its policies read, leaves [capacity, players, ...]
    weights: Any  # [players, capacity], how likely each player's opponents are drawn


@struct.dataclass
class AgainstState:
    game: Any
    obs: Any  # of the game
    opponents: Any  # [players] int32, which policy of the pool each of them plays until the episode ends
    memory: Any  # of each role's players, leaves [players, ...]


@dataclass(frozen=True)
class Against:
    """One player's game, by its role; an opponent of each other player is drawn when an episode begins, and stays.

    What is played is told by params, a Match, so that all players of a role are copies of one program.
    """

    game: Env
    role: str  # the name of one of its players
    casts: Mapping[str, Cast] = field(default_factory=dict, hash=False, compare=False)  # by the names of roles

    fresh_reset = True  # of each episode the opponents are drawn anew

    @property
    def roles(self) -> Roles:
        """The players of the game."""
        return Roles(self.game)

    @property
    def own(self) -> Role:
        """That of the one that plays."""
        return self.roles.role(self.role)

    @property
    def observation_space(self) -> Space:
        return self.own.observation_space

    @property
    def action_space(self) -> Space:
        return self.own.action_space

    @property
    def max_episode_steps(self) -> int:
        return self.game.max_episode_steps

    @property
    def default_params(self) -> Match:
        """A match against nobody: only its shapes are of use."""
        players = len(self.roles.players)
        return Match(self.game.default_params, jnp.int32(0), {}, jnp.ones((players, 1)))

    def reset(self, key: Key, params: Match) -> tuple[AgainstState, Any]:
        key_game, key_opponents = jax.random.split(key)
        game, obs = self.game.reset(key_game, params.game)
        opponents = drawn(key_opponents, params.weights)
        memory = {}
        for role in self.roles.roles:
            one, count = self.cast(role).memory, len(self.others(role, params.player))
            memory[role.name] = tree.broadcast(one, count)
        return AgainstState(game, obs, opponents, memory), self.seen(obs, params.player)

    def step(self, key: Key, env_state: AgainstState, action: Any, params: Match) -> tuple[AgainstState, TimeStep]:
        key_game, key_act = jax.random.split(key)
        actions, memory = {}, {}
        for i, role in enumerate(self.roles.roles):
            who, cast = self.others(role, params.player), self.cast(role)
            number = jnp.asarray(self.roles.numbers(role))[who]
            seen = tree.index(self.roles.stacked(role, env_state.obs), who)
            having = seen, env_state.memory[role.name], jax.random.fold_in(key_act, i)
            theirs, memory[role.name] = act_as(
                cast, params.pool.get(role.name, {}), env_state.opponents[number], who, *having
            )
            if role == self.own:  # own, next, next, ...: turned so that each stands in its place
                line = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), action, theirs)
                theirs = tree.index(line, (jnp.arange(len(role.players)) - params.player) % len(role.players))
            actions |= self.roles.spread(role, theirs)
        game, timestep = self.game.step(key_game, env_state.game, actions, params.game)
        own = timestep.with_rewards(lambda reward: tree.index(self.roles.stacked(self.own, reward), params.player))
        own = replace(own, obs=self.seen(timestep.obs, params.player))
        if timestep.ends is not None:
            own = self.ended(own, timestep.ends, params.player)
        return AgainstState(game, timestep.obs, env_state.opponents, memory), own

    def ended(self, own: TimeStep, ends: Ends, player: Int[Array, ""]) -> TimeStep:
        """The player's step, which ends its episode where it is out of the game for good, or all of its team are."""
        game, of_player = (own.terminated, own.truncated), partial(self.seen, player=player)
        ends = Ends(of_player(ends.terminated), of_player(ends.truncated))
        if not self.own.is_team:
            terminated, truncated = Ends.of_member(game, (ends.terminated, ends.truncated))
            return replace(own, terminated=terminated, truncated=truncated, ends=None)
        lost, over = ends.terminated["team"].all(), ends.any["team"].all()
        terminated, truncated = Ends.of_member(game, (lost, over & ~lost))
        return replace(own, terminated=terminated, truncated=truncated, ends=ends)

    def seen(self, obs: Any, player: Int[Array, ""]) -> Any:
        """What one of the players observes, of a game's observations, or else has of what is by group."""
        return tree.index(self.roles.stacked(self.own, obs), player)

    def cast(self, role: Role) -> Cast:
        """How the players of a role act, where nothing is said at random."""
        return self.casts.get(role.name) or ByChance(role)

    def others(self, role: Role, player: Int[Array, ""]) -> Int[Array, " others"]:
        """Which players of a role are not the one that plays, from the next one on."""
        n = len(role.players)
        return (player + 1 + jnp.arange(n - 1)) % n if role == self.own else jnp.arange(n)
