"""Game as a learner of a league plays it: in a randomly sampled seat, with a record of opponents and wins."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.envs.wrappers import Wrapper
from evorl.leagues.single_player_game import MatchParams, SinglePlayerGame, SinglePlayerState
from evorl.metrics import EPISODE_PREFIX
from evorl.types import Key, Metrics, TimeStep

MATCH_INFO: Mapping[str, str] = MappingProxyType({"met": "last", "won": "last"})


@struct.dataclass
class LeagueGameState:
    inner: SinglePlayerState
    player: Int[Array, ""]  # index of the learner's player within its role, fixed during the episode
    episode_return: Float[Array, ""]  # return so far, for a team the mean over its members


@dataclass(frozen=True)
class LeagueGame(Wrapper):
    """Wrapper of `SinglePlayerGame` that samples which player it plays at the start of each episode.

    The player in MatchParams is ignored. The episode metrics are, for each policy of the pool, the number of
    opponents that played it ("met"), and how many of these matches were won, with a draw as half a win
    ("won"), both of shape [policies].
    """

    inner: SinglePlayerGame
    num_policies: int

    @property
    def episode_info(self) -> Mapping[str, str]:
        return MATCH_INFO

    def reset(self, key: Key, params: MatchParams) -> tuple[LeagueGameState, Any]:
        key_seat, key_game = jax.random.split(key)
        seat = jax.random.randint(key_seat, (), 0, len(self.inner.player_role.players))
        state, obs = self.inner.reset(key_game, replace(params, player=seat))
        return LeagueGameState(state, seat, jnp.float32(0)), obs

    def step(
        self, key: Key, env_state: LeagueGameState, action: Any, params: MatchParams
    ) -> tuple[LeagueGameState, TimeStep]:
        before, seat = env_state.inner, env_state.player
        state, timestep = self.inner.step(key, before, action, replace(params, player=seat))
        total = env_state.episode_return + sum(x.mean() for x in jax.tree.leaves(timestep.raw_reward))
        others = jnp.arange(len(before.opponents)) != seat
        met = (jax.nn.one_hot(before.opponents, self.num_policies) * others[:, None]).sum(0)
        told = {"met": met, "won": met * score_match(total)}
        return LeagueGameState(state, seat, total), replace(timestep, info=timestep.info | told)


def score_match(total: Any) -> Any:
    """Return 1 if a return is a win (above 0), 1/2 if it is a draw (0), and 0 otherwise."""
    return jnp.where(total > 0, 1.0, jnp.where(total < 0, 0.0, 0.5))


def sum_match_results(metrics: Metrics, policies: int) -> tuple[Float[Array, "n policies"], Float[Array, "n policies"]]:
    """Return how often n learners met each policy in the ended episodes, and how often they won, from metrics [n]."""
    each = [jnp.stack([metrics[f"{EPISODE_PREFIX}{name}/{i}"] for i in range(policies)], 1) for name in MATCH_INFO]
    met, won = (x * metrics["episodes"][:, None] for x in each)
    return met, won


def drop_match_metrics(metrics: Metrics) -> Metrics:
    """Return the metrics without the match results of each policy."""
    of_policies = tuple(f"{EPISODE_PREFIX}{name}/" for name in MATCH_INFO)
    return {name: x for name, x in metrics.items() if not name.startswith(of_policies)}
