"""Games whose players act once, all at the same time, or so many times again."""

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
    previous_actions: Int[Array, " players"]  # what each did in the last round, -1 before the first
    steps: Int[Array, ""]


@dataclass(frozen=True)
class MatrixGame:
    """A game by its payoffs, one tensor for each player, [players, actions of each ...], or by its name.

    With `shared`, payoffs are one tensor for all. Played once it is then over; of several rounds the last is truncated.
    Each sees what all did in the round before, itself first, as ones among zeros; nothing before the first. Players are
    one group, player, where all are paid the same and have as many actions, else each is its own, player_0 and so on,
    unless `together` says it.
    """

    game: str = ""
    payoffs: NestedNumbers = ()
    shared: bool = False
    rounds: int = 1
    together: bool | None = None

    default_params = None
    fresh_reset = False

    def __post_init__(self) -> None:
        require(bool(self.game) != bool(self.payoffs), "game", self.game or '""', "give a name, or payoffs")
        require_int("rounds", self.rounds)
        object.__setattr__(self, "payoffs", _to_tuple(self.payoffs))
        _ = self.payoff_tensor, self.action_space

    @staticmethod
    def names() -> list[str]:
        """The games that have one."""
        return list(CLASSICS)

    @cached_property
    def payoff_tensor(self) -> Float[np.ndarray, "players ..."]:
        """What each player gets."""
        return get_classic_payoffs(self.game) if self.game else build_payoff_tensor(self.payoffs, self.shared)

    @property
    def action_counts(self) -> tuple[int, ...]:
        """How many actions each player has."""
        return self.payoff_tensor.shape[1:]

    @cached_property
    def player_groups(self) -> PlayerGroups:
        """The players as groups."""
        one_role = len(set(self.action_counts)) == 1 and bool((self.payoff_tensor == self.payoff_tensor[0]).all())
        return create_player_groups(len(self.payoff_tensor), one_role if self.together is None else self.together)

    @property
    def max_episode_steps(self) -> int:
        """The rounds."""
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
        """What all observe."""
        did = [jax.nn.one_hot(env_state.previous_actions[i], n) for i, n in enumerate(self.action_counts)]
        return self.player_groups.split(self._rotate_to_self(did))

    def _rotate_to_self(self, did: list[Array]) -> Array:
        return jnp.stack([jnp.concatenate(did[i:] + did[:i]) for i in range(len(did))])


def _to_tuple(values: Any) -> Any:
    return tuple(map(_to_tuple, values)) if isinstance(values, (list, tuple)) else values
