"""Players of a game, by role: players with equal observation and action spaces have the same role."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evorl import tree
from evorl.envs.games.game_wrappers import require_game
from evorl.errors import OptionError, unknown_name_error
from evorl.spaces import Dict, Members, Space, groups
from evorl.types import Env


@dataclass(frozen=True)
class Role:
    """Players with equal spaces. Each player is a group of the game, and acts as a team if `is_team`."""

    players: tuple[str, ...]
    group_observation_space: Members
    group_action_space: Members
    is_team: bool  # true for all roles of a game if any of its groups has several members

    @property
    def name(self) -> str:
        """Return the name of its first player."""
        return self.players[0]

    @property
    def observation_space(self) -> Space:
        """Return the observation space of a single player: that of its member, or of a game with the group `team`."""
        return Dict({"team": self.group_observation_space}) if self.is_team else self.group_observation_space.space

    @property
    def action_space(self) -> Space:
        return Dict({"team": self.group_action_space}) if self.is_team else self.group_action_space.space

    def to_single_player(self, values: Any) -> Any:
        """Convert values of a player, leaves [members, ...], to those of the single-player environment."""
        return {"team": values} if self.is_team else tree.index(values, 0)

    def from_single_player(self, values: Any) -> Any:
        """Convert values of the single-player environment to those of a player, leaves [members, ...]."""
        return values["team"] if self.is_team else tree.broadcast(values, 1)


@dataclass(frozen=True)
class Roles:
    """All players of a game, in its order, and their roles."""

    game: Env

    def __post_init__(self) -> None:
        require_game(self.game, "env")
        if len(self.players) < 2:
            one = f"env: {type(self.game).__name__} has one group"
            raise OptionError(f"{one}; games of leagues need one group per player (docs/howto/leagues.md)")

    @cached_property
    def players(self) -> tuple[str, ...]:
        """Return the names of the players, which are those of the groups."""
        return tuple(groups(self.game.action_space))

    @property
    def num_players(self) -> int:
        """Return the number of players."""
        return len(self.players)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles, each of all players with the same spaces."""
        sees, does = groups(self.game.observation_space), groups(self.game.action_space)
        alike: dict[Any, list[str]] = {}
        for name in self.players:
            alike.setdefault((sees[name], does[name]), []).append(name)
        is_team = any(of.n > 1 for of in does.values())
        return tuple(Role(tuple(names), *spaces, is_team=is_team) for spaces, names in alike.items())

    def find_role(self, player: str) -> Role:
        """Return the role of a player; raise OptionError if there is no such player."""
        for role in self.roles:
            if player in role.players:
                return role
        raise unknown_name_error("player", player, self.players)

    def get_player_indices(self, role: Role) -> list[int]:
        """Return the indices of a role's players among all players."""
        return [self.players.index(name) for name in role.players]

    def stack_players(self, role: Role, values: dict[str, Any]) -> Any:
        """Stack the values of a role's players, given by group, in single-player form, leaves [players, ...]."""
        return tree.stack([role.to_single_player(values[name]) for name in role.players])

    def unstack_players(self, role: Role, values: Any) -> dict[str, Any]:
        """Return stacked values of a role's players by group, leaves [members, ...]; the inverse of `stack_players`."""
        return {name: role.from_single_player(tree.index(values, i)) for i, name in enumerate(role.players)}
