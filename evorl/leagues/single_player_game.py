"""Game from the view of one player, against opponents whose policies are sampled from a pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import tree
from evorl.leagues.meta_games import sample_policies
from evorl.leagues.policy_grouping import act_from_pool
from evorl.leagues.policy_sets import PolicySet, RandomPolicySet
from evorl.leagues.roles import Role, Roles
from evorl.spaces import Space
from evorl.types import Env, Key, MemberEnds, Memory, State, TimeStep


@struct.dataclass
class MatchParams:
    """Environment parameters of `SinglePlayerGame`: the player, and the pool and mixtures of its opponents."""

    game: PyTree  # environment parameters of the game
    player: Int[Array, ""]  # index of the learning player within its role
    pool: dict[str, PyTree]  # by role, as its policy set reads them, leaves [capacity, players, ...]
    weights: Float[Array, "players capacity"]  # probability with which each player samples each policy


@struct.dataclass
class SinglePlayerState:
    game: State
    obs: PyTree  # of all players
    opponents: Int[Array, " players"]  # index of each player's policy in the pool, fixed during the episode
    memory: dict[str, Memory]  # of each role's opponents, leaves [opponents, ...]


@dataclass(frozen=True)
class SinglePlayerGame:
    """Game as one of its players sees it; opponents are sampled at the start of an episode and stay until its end.

    The environment parameters, MatchParams, determine the player and its opponents, so that all players of a
    role are copies of one program.
    """

    game: Env
    role: str  # name of one of its players
    # by the name of the role
    policy_sets: Mapping[str, PolicySet] = field(default_factory=dict, hash=False, compare=False)

    fresh_reset = True  # each episode samples new opponents

    @property
    def roles(self) -> Roles:
        """Return the players of the game, by role."""
        return Roles(self.game)

    @property
    def player_role(self) -> Role:
        """Return the role of the player that learns."""
        return self.roles.find_role(self.role)

    @property
    def observation_space(self) -> Space:
        return self.player_role.observation_space

    @property
    def action_space(self) -> Space:
        return self.player_role.action_space

    @property
    def max_episode_steps(self) -> int:
        return self.game.max_episode_steps

    @property
    def default_params(self) -> MatchParams:
        """Return the parameters of a match without opponents, of which only the shapes are useful."""
        players = len(self.roles.players)
        return MatchParams(self.game.default_params, jnp.int32(0), {}, jnp.ones((players, 1)))

    def reset(self, key: Key, params: MatchParams) -> tuple[SinglePlayerState, Any]:
        key_game, key_opponents = jax.random.split(key)
        game, obs = self.game.reset(key_game, params.game)
        opponents = sample_policies(key_opponents, params.weights)
        memory = {}
        for role in self.roles.roles:
            one, count = self.get_policy_set(role).initial_memory, len(self.get_other_players(role, params.player))
            memory[role.name] = tree.broadcast(one, count)
        return SinglePlayerState(game, obs, opponents, memory), self.select_player(obs, params.player)

    def step(
        self, key: Key, env_state: SinglePlayerState, action: Any, params: MatchParams
    ) -> tuple[SinglePlayerState, TimeStep]:
        key_game, key_act = jax.random.split(key)
        actions, memory = {}, {}
        for i, role in enumerate(self.roles.roles):
            who, cast = self.get_other_players(role, params.player), self.get_policy_set(role)
            number = jnp.asarray(self.roles.get_player_indices(role))[who]
            seen = tree.index(self.roles.stack_players(role, env_state.obs), who)
            having = seen, env_state.memory[role.name], jax.random.fold_in(key_act, i)
            theirs, memory[role.name] = act_from_pool(
                cast, params.pool.get(role.name, {}), env_state.opponents[number], who, *having
            )
            if role == self.player_role:  # the actions start with the own one; rotate them into the players' order
                line = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), action, theirs)
                theirs = tree.index(line, (jnp.arange(len(role.players)) - params.player) % len(role.players))
            actions |= self.roles.unstack_players(role, theirs)
        game, timestep = self.game.step(key_game, env_state.game, actions, params.game)
        own = timestep.with_rewards(
            lambda reward: tree.index(self.roles.stack_players(self.player_role, reward), params.player)
        )
        own = replace(own, obs=self.select_player(timestep.obs, params.player))
        if timestep.member_ends is not None:
            own = self.apply_member_ends(own, timestep.member_ends, params.player)
        return SinglePlayerState(game, timestep.obs, env_state.opponents, memory), own

    def apply_member_ends(self, own: TimeStep, ends: MemberEnds, player: Int[Array, ""]) -> TimeStep:
        """End the player's episode if the player, or its whole team, is permanently out of the game."""
        game, of_player = (own.terminated, own.truncated), partial(self.select_player, player=player)
        ends = MemberEnds(of_player(ends.terminated), of_player(ends.truncated))
        if not self.player_role.is_team:
            terminated, truncated = MemberEnds.merge_game_end(game, (ends.terminated, ends.truncated))
            return replace(own, terminated=terminated, truncated=truncated, member_ends=None)
        lost, over = ends.terminated["team"].all(), ends.is_done["team"].all()
        terminated, truncated = MemberEnds.merge_game_end(game, (lost, over & ~lost))
        return replace(own, terminated=terminated, truncated=truncated, member_ends=ends)

    def select_player(self, obs: Any, player: Int[Array, ""]) -> Any:
        """Return the observation of one player of the role, or its part of any other values by group."""
        return tree.index(self.roles.stack_players(self.player_role, obs), player)

    def get_policy_set(self, role: Role) -> PolicySet:
        """Return the policy set of a role; without one, its players act at random."""
        return self.policy_sets.get(role.name) or RandomPolicySet(role)

    def get_other_players(self, role: Role, player: Int[Array, ""]) -> Int[Array, " others"]:
        """Return the indices of a role's players, except that of the learning player.

        They start at the next player and wrap around. For another role, they are the indices of all its
        players.
        """
        n = len(role.players)
        return (player + 1 + jnp.arange(n - 1)) % n if role == self.player_role else jnp.arange(n)
