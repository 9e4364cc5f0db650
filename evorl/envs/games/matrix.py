"""Normal-form games, played once or repeatedly."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.envs.games.payoffs import CLASSICS, NestedNumbers, build_payoff_tensor, get_classic_payoffs
from evorl.envs.games.player_groups import PlayerGroups, create_player_groups
from evorl.errors import require, require_int
from evorl.spaces import Box, Dict, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class MatrixGameState:
    previous_actions: Int[Array, " players"]  # actions of the last round, -1 before the first round
    steps: Int[Array, ""]


@dataclass(frozen=True)
class MatrixGame:
    """Normal-form game, in which all players act simultaneously, played for one or several rounds.

    A single round terminates the episode; of several rounds, the last one truncates it. Each player observes
    the actions of the previous round, one-hot, with its own action first, and zeros before the first round.

    Args:
        game: Name of a game, one of `names()`; empty if `payoffs` are given.
        payoffs: Payoffs, one tensor for each player, [players, actions of player 0, actions of player 1,
            ...].
        shared: Whether `payoffs` is only one tensor, the payoff of all players.
        rounds: Number of rounds.
        together: Whether all players are members of one group, player; otherwise, each is a group: player_0,
            player_1 and so on. None is True if all players have the same payoffs and the same number of
            actions.

    Raises:
        OptionError: If not exactly one of `game` and `payoffs` is given, or if one of them is not valid.
    """

    game: str = ""
    payoffs: NestedNumbers = ()
    shared: bool = False
    rounds: int = 1
    together: bool | None = None

    default_params = None
    fresh_reset = False

    def __post_init__(self) -> None:
        require(bool(self.game) != bool(self.payoffs), "game", self.game or '""', "give either a name or payoffs")
        require_int("rounds", self.rounds)
        object.__setattr__(self, "payoffs", _to_tuple(self.payoffs))
        _ = self.payoff_tensor, self.action_space

    @staticmethod
    def names() -> list[str]:
        """Return the names of the built-in games."""
        return list(CLASSICS)

    @cached_property
    def payoff_tensor(self) -> Float[np.ndarray, "players ..."]:
        """Return the payoffs of each player, [players, actions of player 0, actions of player 1, ...]."""
        return get_classic_payoffs(self.game) if self.game else build_payoff_tensor(self.payoffs, self.shared)

    @property
    def action_counts(self) -> tuple[int, ...]:
        """Return the number of actions of each player."""
        return self.payoff_tensor.shape[1:]

    @cached_property
    def player_groups(self) -> PlayerGroups:
        """Return the grouping of the players."""
        one_role = len(set(self.action_counts)) == 1 and bool((self.payoff_tensor == self.payoff_tensor[0]).all())
        return create_player_groups(len(self.payoff_tensor), one_role if self.together is None else self.together)

    @property
    def max_episode_steps(self) -> int:
        """Return the number of rounds."""
        return self.rounds

    @cached_property
    def observation_space(self) -> Dict:
        return self.player_groups.game_space(*[Box(0, 1, (sum(self.action_counts),))] * len(self.payoff_tensor))

    @cached_property
    def action_space(self) -> Dict:
        return self.player_groups.game_space(*(Discrete(n) for n in self.action_counts))

    def reset(self, key: Key, params: Any) -> tuple[MatrixGameState, dict[str, Any]]:
        del key, params
        state = MatrixGameState(jnp.full(len(self.payoff_tensor), -1, jnp.int32), jnp.int32(0))
        return state, self.observe(state)

    def step(self, key: Key, env_state: MatrixGameState, action: Any, params: Any) -> tuple[MatrixGameState, TimeStep]:
        del key, params
        done = self.player_groups.concatenate(action)
        state = MatrixGameState(done, env_state.steps + 1)
        reward = jnp.asarray(self.payoff_tensor)[(slice(None), *done)]
        over, once = state.steps >= self.rounds, self.rounds == 1
        return state, TimeStep(self.observe(state), self.player_groups.split(reward), over & once, over & (not once))

    def observe(self, env_state: MatrixGameState) -> dict[str, Any]:
        """Return the observations of all players, by group.

        Args:
            env_state: State to observe.
        """
        did = [jax.nn.one_hot(env_state.previous_actions[i], n) for i, n in enumerate(self.action_counts)]
        return self.player_groups.split(self._rotate_to_self(did))

    def _rotate_to_self(self, did: list[Array]) -> Array:
        return jnp.stack([jnp.concatenate(did[i:] + did[:i]) for i in range(len(did))])


def _to_tuple(values: Any) -> Any:
    return tuple(map(_to_tuple, values)) if isinstance(values, (list, tuple)) else values
