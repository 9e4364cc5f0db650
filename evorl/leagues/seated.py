"""A game as a player of a league plays it: in a seat that is drawn, telling whom it met and who won."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.envs.wrappers import Wrapper
from evorl.leagues.against import Against, AgainstState, Match
from evorl.metrics import EPISODE
from evorl.types import Key, Metrics, TimeStep

SUMMARY: Mapping[str, str] = MappingProxyType({"met": "last", "won": "last"})


@struct.dataclass
class SeatedState:
    inner: AgainstState
    seat: Any  # [] int32, which player the one that plays is until the episode ends
    total: Any  # [], what it got so far, of a team the mean of its members


@dataclass(frozen=True)
class Seated(Wrapper):
    """Against, but whose player is drawn when an episode begins, whatever its Match says.

    An episode's summary is, for each policy of the pool, how many others played it ("met"), and how often that was won,
    a draw as half of it ("won"), both [policies].
    """

    inner: Against
    policies: int

    @property
    def episode_info(self) -> Mapping[str, str]:
        return SUMMARY

    def reset(self, key: Key, params: Match) -> tuple[SeatedState, Any]:
        key_seat, key_game = jax.random.split(key)
        seat = jax.random.randint(key_seat, (), 0, len(self.inner.own.players))
        state, obs = self.inner.reset(key_game, replace(params, player=seat))
        return SeatedState(state, seat, jnp.float32(0)), obs

    def step(self, key: Key, env_state: SeatedState, action: Any, params: Match) -> tuple[SeatedState, TimeStep]:
        before, seat = env_state.inner, env_state.seat
        state, timestep = self.inner.step(key, before, action, replace(params, player=seat))
        total = env_state.total + sum(x.mean() for x in jax.tree.leaves(timestep.scored))
        others = jnp.arange(len(before.opponents)) != seat
        met = (jax.nn.one_hot(before.opponents, self.policies) * others[:, None]).sum(0)
        told = {"met": met, "won": met * outcome(total)}
        return SeatedState(state, seat, total), replace(timestep, info=timestep.info | told)


def outcome(total: Any) -> Any:
    """1 where a return is a win, above 0, and 1/2 where it is 0, a draw."""
    return jnp.where(total > 0, 1.0, jnp.where(total < 0, 0.0, 0.5))


def told(metrics: Metrics, policies: int) -> tuple[Float[Array, "n policies"], Float[Array, "n policies"]]:
    """What the ended episodes of n learners add up to, by metrics [n]: whom they met, and won against."""
    each = [jnp.stack([metrics[f"{EPISODE}{name}/{i}"] for i in range(policies)], 1) for name in SUMMARY]
    met, won = (x * metrics["episodes"][:, None] for x in each)
    return met, won


def plain(metrics: Metrics) -> Metrics:
    """Metrics without what episodes tell of each policy."""
    of_policies = tuple(f"{EPISODE}{name}/" for name in SUMMARY)
    return {name: x for name, x in metrics.items() if not name.startswith(of_policies)}
