"""Games whose players act once, all at the same time, or so many times again."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from evorl.envs.games.payoffs import CLASSICS, Nested, classic, tensor
from evorl.envs.games.seats import Seats, numbered
from evorl.errors import require, require_whole
from evorl.spaces import Box, Dict, Discrete
from evorl.types import Key, TimeStep


@struct.dataclass
class MatrixState:
    last: Any  # [players] int32, what each did in the last round, -1 before the first
    steps: Any  # [] int32


@dataclass(frozen=True)
class Matrix:
    """A game by its payoffs, one tensor for each player, [players, actions of each ...], or by its name.

    With `shared`, payoffs are one tensor for all. Played once it is then over; of several rounds the last is truncated.
    Each sees what all did in the round before, itself first, as ones among zeros; nothing before the first. Players are
    one group, player, where all are paid the same and have as many actions, else each is its own, player_0 and so on,
    unless `together` says it.
    """

    game: str = ""
    payoffs: Nested = ()
    shared: bool = False
    rounds: int = 1
    together: bool | None = None

    default_params = ()
    fresh_reset = False

    def __post_init__(self) -> None:
        require(bool(self.game) != bool(self.payoffs), "game", self.game or '""', "give a name, or payoffs")
        require_whole("rounds", self.rounds)
        object.__setattr__(self, "payoffs", _tuple(self.payoffs))
        _ = self.table, self.action_space

    @staticmethod
    def names() -> list[str]:
        """The games that have one."""
        return list(CLASSICS)

    @cached_property
    def table(self) -> Float[np.ndarray, "players ..."]:
        """What each player gets."""
        return classic(self.game) if self.game else tensor(self.payoffs, self.shared)

    @property
    def choices(self) -> tuple[int, ...]:
        """How many actions each player has."""
        return self.table.shape[1:]

    @cached_property
    def seats(self) -> Seats:
        """The players as groups."""
        one_role = len(set(self.choices)) == 1 and bool((self.table == self.table[0]).all())
        return numbered(len(self.table), one_role if self.together is None else self.together)

    @property
    def max_episode_steps(self) -> int:
        """The rounds."""
        return self.rounds

    @cached_property
    def observation_space(self) -> Dict:
        return self.seats.space(*[Box(0, 1, (sum(self.choices),))] * len(self.table))

    @cached_property
    def action_space(self) -> Dict:
        return self.seats.space(*(Discrete(n) for n in self.choices))

    def reset(self, key: Key, params: Any) -> tuple[MatrixState, dict[str, Any]]:
        del key, params
        state = MatrixState(jnp.full(len(self.table), -1, jnp.int32), jnp.int32(0))
        return state, self.seen(state)

    def step(self, key: Key, env_state: MatrixState, action: Any, params: Any) -> tuple[MatrixState, TimeStep]:
        del key, params
        done = self.seats.joined(action)
        state = MatrixState(done, env_state.steps + 1)
        reward = jnp.asarray(self.table)[(slice(None), *done)]
        over, once = state.steps >= self.rounds, self.rounds == 1
        return state, TimeStep(self.seen(state), self.seats.split(reward), over & once, over & (not once))

    def seen(self, env_state: MatrixState) -> dict[str, Any]:
        """What all observe."""
        did = [jax.nn.one_hot(env_state.last[i], n) for i, n in enumerate(self.choices)]
        return self.seats.split(self._own_first(did))

    def _own_first(self, did: list[Array]) -> Array:
        return jnp.stack([jnp.concatenate(did[i:] + did[:i]) for i in range(len(did))])


def _tuple(values: Any) -> Any:
    return tuple(map(_tuple, values)) if isinstance(values, (list, tuple)) else values
