"""The players of a game by what they see and do."""

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
    """Players of equal spaces, which are groups of a game; one of several members plays as the team of its group."""

    players: tuple[str, ...]
    group_observation_space: Members
    group_action_space: Members
    is_team: bool  # whether its players act as teams do, as all do where one has several members

    @property
    def name(self) -> str:
        """That of its first player."""
        return self.players[0]

    @property
    def observation_space(self) -> Space:
        """What one that plays alone observes: its member's, or of a team that of a game of this group, `team`."""
        return Dict({"team": self.group_observation_space}) if self.is_team else self.group_observation_space.space

    @property
    def action_space(self) -> Space:
        return Dict({"team": self.group_action_space}) if self.is_team else self.group_action_space.space

    def to_single_player(self, values: Any) -> Any:
        """What a player has, leaves [members, ...], as one that plays alone has it."""
        return {"team": values} if self.is_team else tree.index(values, 0)

    def from_single_player(self, values: Any) -> Any:
        """What one that plays alone has, as a player has it, leaves [members, ...]."""
        return values["team"] if self.is_team else tree.broadcast(values, 1)


@dataclass(frozen=True)
class Roles:
    """All players of a game, in its order; by role those with equal spaces."""

    game: Env

    def __post_init__(self) -> None:
        require_game(self.game, "env")
        if len(self.players) < 2:
            one = f"env: {type(self.game).__name__} is of one group"
            raise OptionError(f"{one}, and a league is of players, each a group of its own (docs/howto/leagues.md)")

    @cached_property
    def players(self) -> tuple[str, ...]:
        """Their names, those of the groups."""
        return tuple(groups(self.game.action_space))

    @property
    def num_players(self) -> int:
        """How many there are."""
        return len(self.players)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The players by what they see and do."""
        sees, does = groups(self.game.observation_space), groups(self.game.action_space)
        alike: dict[Any, list[str]] = {}
        for name in self.players:
            alike.setdefault((sees[name], does[name]), []).append(name)
        is_team = any(of.n > 1 for of in does.values())
        return tuple(Role(tuple(names), *spaces, is_team=is_team) for spaces, names in alike.items())

    def find_role(self, player: str) -> Role:
        """That of a player; raises OptionError where there is none."""
        for role in self.roles:
            if player in role.players:
                return role
        raise unknown_name_error("player", player, self.players)

    def get_player_indices(self, role: Role) -> list[int]:
        """Which of all players those of a role are."""
        return [self.players.index(name) for name in role.players]

    def stack_players(self, role: Role, values: dict[str, Any]) -> Any:
        """What the players of a role have of values by group, as they have it who play alone, leaves [players, ...]."""
        return tree.stack([role.to_single_player(values[name]) for name in role.players])

    def unstack_players(self, role: Role, values: Any) -> dict[str, Any]:
        """The reverse of stack_players: by group, leaves [members, ...]."""
        return {name: role.from_single_player(tree.index(values, i)) for i, name in enumerate(role.players)}
