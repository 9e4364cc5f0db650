"""Adapters for games of pgx (Koyamada et al. 2023, arXiv:2303.17503): one seat against an opponent, or all seats."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from evorl import mesh, tree
from evorl.envs.suites.common import SuiteState, import_extra
from evorl.errors import require, require_int, unknown_name_error
from evorl.part_docs import complete_docstring
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask, random_action
from evorl.types import Agent, Key, Memory, State, TimeStep

TWO_PLAYERS = 2


@struct.dataclass
class PgxState:
    inner: State
    player: Int[Array, ""]  # index of the agent's player
    steps: Int[Array, ""]
    memory: Memory = None  # of the opponent


@dataclass(frozen=True)
class PgxBase:
    """Base class of the adapters for pgx games.

    Args:
        name: Name of the game, one of `names()`.
        max_episode_steps: Steps after which a game is truncated.

    Raises:
        OptionError: If a value is not allowed or pgx is not installed.
    """

    name: str
    max_episode_steps: int = 1000

    fresh_reset = True

    def __post_init__(self) -> None:
        require_int("max_episode_steps", self.max_episode_steps)
        _ = self.env

    @staticmethod
    def names() -> list[str]:
        """Return the names of all games, including those for more than two players."""
        return list(import_extra("pgx", "pgx").available_envs())

    @cached_property
    def env(self) -> Any:
        """Return the wrapped game."""
        if self.name not in self.names():
            raise unknown_name_error("game of pgx", self.name, self.names(), "--list env=pgx")
        with mesh.eager_mode():
            return import_extra("pgx", "pgx").make(self.name)

    @cached_property
    def board_space(self) -> Box:
        """Return the space of a player's observation without the action mask."""
        seen = jax.eval_shape(self.env.init, jax.random.key(0)).observation
        whole = jnp.issubdtype(seen.dtype, jnp.bool_)
        return Box(0, 1, tuple(seen.shape), "uint8") if whole else Box(-jnp.inf, jnp.inf, tuple(seen.shape))

    @property
    def move_space(self) -> Discrete:
        """Return the space of a player's action."""
        return Discrete(int(self.env.num_actions))

    @property
    def player_space(self) -> ObsWithActionMask:
        """Return the space of a player's observation with its action mask."""
        return ObsWithActionMask(self.board_space, (self.move_space.n,))

    def init_game(self, key: Key) -> Any:
        """Return the state of a new game."""
        return _drop_observation(self.env.init(key))

    def step_game(self, game: Any, action: Any, key: Key) -> Any:
        """Return the game after an action of the current player."""
        return _drop_observation(self.env.step(game, action, key))

    def observe_board(self, game: Any, player: Array) -> Array:
        """Return a player's observation of a game."""
        return jnp.asarray(
            self.env._observe(game, player), self.board_space.dtype
        )  # the public `observe` is deprecated

    def compute_ends(self, game: Any, steps: Array) -> tuple[Array, Array]:
        """Return whether a game has terminated and whether it is truncated."""
        return game.terminated, ~game.terminated & (game.truncated | (steps >= self.max_episode_steps))

    def draw(self, states: list[Any], folder: Path) -> list[Path]:
        """Write board.svg, which shows the last of the states, and return its path."""
        path = folder / "board.svg"
        states[-1].inner.save_svg(path)
        return [path]


@complete_docstring
@dataclass(frozen=True)
class Pgx(PgxBase):
    """A pgx game for one or two players, such as Pgx("connect_four"), in which an agent plays one seat.

    The seat is drawn at reset. Between two steps the opponent makes all its moves. An illegal action loses at
    once, as in pgx; observations include the action mask. Games longer than `max_episode_steps` moves of the
    agent are truncated.

    Args:
        opponent: Agent that plays the other seat, whose parameters are the env params. None plays random
            legal moves.

    Raises:
        OptionError: If the game has more than two players.

    Source: Koyamada et al. 2023, arXiv:2303.17503.
    """

    opponent: Agent | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        players = int(self.env.num_players)
        require(
            players <= TWO_PLAYERS,
            "env.name",
            self.name,
            f"has {players} players; only games for one or two are supported",
        )

    @property
    def default_params(self) -> Any:
        """Return initial parameters of the opponent, or None without an opponent."""
        if self.opponent is None:
            return None
        key = jax.random.key(0)
        return self.opponent.init(key).actor.params

    @property
    def observation_space(self) -> ObsWithActionMask:
        return self.player_space

    @property
    def episode_info(self) -> dict[str, str]:
        """Return the info of an episode: in two-player games, whether it was won."""
        return {"won": "last"} if self.env.num_players == TWO_PLAYERS else {}

    @property
    def action_space(self) -> Discrete:
        return self.move_space

    def reset(self, key: Key, params: Any) -> tuple[PgxState, Any]:
        key_game, key_seat, key_moves = jax.random.split(key, 3)
        inner = self.init_game(key_game)
        seat = jax.random.randint(key_seat, (), 0, self.env.num_players).astype(jnp.int32)
        memory = None if self.opponent is None else self.opponent.initial_memory()
        inner, _, memory = self._play_opponent(key_moves, inner, seat, memory, params)
        return PgxState(inner, seat, jnp.int32(0), memory), self._build_obs(inner, seat)

    def step(self, key: Key, env_state: PgxState, action: Any, params: Any) -> tuple[PgxState, TimeStep]:
        key_move, key_moves = (key, key) if self.env.num_players == 1 else jax.random.split(key)
        seat, steps = env_state.player, env_state.steps + 1
        inner = self.step_game(env_state.inner, action, key_move)
        reward = inner.rewards[seat if self.env.num_players == TWO_PLAYERS else 0]
        inner, more, memory = self._play_opponent(key_moves, inner, seat, env_state.memory, params)
        over, truncated = self.compute_ends(inner, steps)
        reward = jnp.float32(reward + more)
        won: Array = over & (reward > 0)
        info = dict.fromkeys(self.episode_info, won)
        state, obs = PgxState(inner, seat, steps, memory), self._build_obs(inner, seat)
        return state, TimeStep(obs, reward, over, truncated, info)

    def _play_opponent(
        self, key: Key, inner: Any, seat: Array, memory: Memory, params: Any
    ) -> tuple[Any, Array, Memory]:
        """Return the game after the opponent's moves, the reward that they give to the agent, and the memory."""
        if self.env.num_players == 1:
            return inner, jnp.float32(0), memory

        def is_opponent_turn(carry: tuple[Any, ...]) -> Array:
            game = carry[0]
            return (game.current_player != seat) & ~game.terminated & ~game.truncated

        def play_move(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            game, reward, memory, key = carry
            key, key_act, key_step = jax.random.split(key, 3)
            move, memory = self._choose_opponent_move(key_act, game, memory, params)
            after = self.step_game(game, move, key_step)
            return after, reward + after.rewards[seat], memory, key

        start = inner, jnp.float32(0), memory, key
        return jax.lax.while_loop(is_opponent_turn, play_move, start)[:3]

    def _choose_opponent_move(self, key: Key, game: Any, memory: Memory, params: Any) -> tuple[Array, Memory]:
        """Return the opponent's move and its memory after it."""
        obs = self._build_obs(game, game.current_player)
        if self.opponent is None:
            return random_action(self.action_space, self.observation_space, obs, key), memory
        return self.opponent.act(params, obs, memory, key)[:2]

    def _build_obs(self, game: Any, player: Array) -> dict[str, Array]:
        return {"legal": game.legal_action_mask, "obs": self.observe_board(game, player)}


@complete_docstring
@dataclass(frozen=True)
class PgxGame(PgxBase):
    """A pgx game for any number of players, such as PgxGame("connect_four"), as a multi-agent environment.

    All players are members of one group, `player`. The starting player is drawn at reset. Each player
    observes the game from its own seat. A player that is not to move has one legal action, the first; once
    the game has ended, so have all. Games longer than `max_episode_steps` moves are truncated.

    Source: Koyamada et al. 2023, arXiv:2303.17503.
    """

    default_params = None

    @property
    def observation_space(self) -> Dict:
        return Dict({"player": Members(self.player_space, int(self.env.num_players))})

    @property
    def action_space(self) -> Dict:
        return Dict({"player": Members(self.move_space, int(self.env.num_players))})

    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        del params
        state = SuiteState.init(self.init_game(key))
        return state, self._build_obs(state.inner)

    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        del params
        game = env_state.inner
        state = env_state.advance(self.step_game(game, action["player"][game.current_player], key))
        over, truncated = self.compute_ends(state.inner, state.steps)
        reward = {"player": jnp.asarray(state.inner.rewards, jnp.float32)}
        return state, TimeStep(self._build_obs(state.inner), reward, over, truncated)

    def _build_obs(self, game: Any) -> dict[str, Any]:
        players = jnp.arange(self.env.num_players, dtype=jnp.int32)
        seen = jax.vmap(self.observe_board, (None, 0))(game, players)
        moves = (players == game.current_player) & ~game.terminated
        first = jnp.arange(self.env.num_actions) == 0
        legal = jnp.where(moves[:, None], game.legal_action_mask, first)
        return {"player": {"legal": legal, "obs": seen}}


def _drop_observation(game: Any) -> Any:
    """Return a game without the observation of its next player, which is then not computed."""
    return tree.drop_weak_types(game.replace(observation=None))
