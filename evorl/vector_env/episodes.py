"""What slots carry between two steps, and what they did during a play."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import tree
from evorl.metrics import EPISODE, LEARNED, RETURN, apart
from evorl.types import Metrics
from evorl.vector_env import hosts

SUMMARIES = ("sum", "mean", "last")


@struct.dataclass
class EnvSlot:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: Any
    obs: Any
    memory: Any
    episode_return: Any  # undiscounted, so far, of the task's own rewards, as these are
    episode_length: Any  # [] int32, so far
    episode_info: Any  # of what the environment summarizes, so far
    gone: Any = ()  # of a game whose members may end before it does, which have: bool [members] by group
    sent: Any = ()  # its last action, the memory after it, extras, and data of a key: of a step on the host under way
    learned_return: Any = ()  # of the rewards that are learned from, so far, where they are others; else ()


@struct.dataclass
class EpisodeStats:
    """What n slots did during one play, each leaf [n, ...]."""

    steps: Any  # int32
    episodes: Any  # int32, ended
    returns: Any  # of the task's own rewards, summed over ended episodes, as these are
    lengths: Any  # int32, summed over ended episodes
    info: Any = struct.field(default_factory=dict)  # what the environment summarizes, summed over ended episodes
    restarts: Any = 0  # int32, episodes that were cut where a number was not finite or, on the host, a step failed
    bad_rewards: Any = 0  # int32, those of restarts where the reward was NaN or infinite, but on the host
    ranked: str | None = struct.field(pytree_node=False, default=None)  # of a game, the group named, "" for all
    learned_returns: Any = ()  # of the rewards that are learned from, where they are others; else ()
    repeats: bool = struct.field(pytree_node=False, default=False)  # whether another episode is played for one cut

    @classmethod
    def zeros(cls, slots: EnvSlot, ranked: str | None = None) -> "EpisodeStats":
        """Of these slots, before their first step."""
        nothing = tree.zeros((slots.episode_length, slots.episode_return, slots.episode_info))
        none, returns, info = nothing
        learned, hosted = tree.zeros(slots.learned_return), bool(hosts.held(slots.env_state))
        return cls(none, none, returns, none, info, none, none, ranked, learned, hosted)

    @property
    def turns(self) -> Any:
        """Steps that were tried, with those that count nowhere."""
        return self.steps + self.restarts

    @property
    def begun(self) -> Any:
        """Return how many episodes have ended or were cut."""
        return self.episodes + self.restarts

    @property
    def done(self) -> Any:
        """Return how many of the episodes to play are over."""
        return self.episodes if self.repeats else self.begun

    @property
    def means(self) -> dict[str, Any]:
        """Of the ended episodes of each slot, leaves [n, ...], 0 where none ended: what the environment summarizes, by
        name, "return" and, where a wrapper has changed the rewards, "learned_return". NaN where one was cut and no
        other is played for it, so that no policy gains by such ends.
        """

        def mean(sums: dict[str, Any], episodes: Array, cut: Array) -> dict[str, Any]:
            return jax.tree.map(lambda x: jnp.where(cut, jnp.nan, x / jnp.maximum(episodes, 1)), sums)

        cut = jnp.broadcast_to(jnp.asarray(self.restarts) > 0, self.episodes.shape) & (not self.repeats)
        return jax.vmap(mean)(self.info | self.totals, self.episodes, cut)

    @property
    def totals(self) -> dict[str, Any]:
        """The "return" that ended episodes add up to, leaves [n, ...], as the rewards are, and the "learned_return".

        Of a game it is the mean over the members of the group that ranks, or over all, and each group has its own, as
        "return/GROUP".
        """
        learned = {} if isinstance(self.learned_returns, tuple) else {LEARNED: self._one(self.learned_returns)}
        of_groups = {} if self.ranked is None else {f"{RETURN}{name}": x.mean(-1) for name, x in self.returns.items()}
        return {"return": self._one(self.returns)} | of_groups | learned

    def _one(self, returns: Any) -> Any:
        """Returns as one number a slot, of a game that of the group that ranks, or the mean over all members."""
        if self.ranked is None:
            return returns
        return (returns[self.ranked] if self.ranked else jnp.concatenate(list(returns.values()), -1)).mean(-1)

    @property
    def fitness(self) -> dict[str, Any]:
        """The means, of which "return" is that of the rewards that are learned from: what evolution is told."""
        means = self.means
        return means | {"return": means.get(LEARNED, means["return"])}

    @property
    def mean_return(self) -> Array:
        """[n], 0 where no episode ended, NaN as in means."""
        return self.means["return"]

    @property
    def error(self) -> Array:
        """[], the standard error of the mean return, from what the slots differ by; infinite for fewer than two.

        The mean of a slot with k of the episodes has 1 / k of an episode's variance, so that squares weigh by k.
        """
        played, episodes, totals = self.episodes > 0, jnp.maximum(self.episodes.sum(), 1), self.totals["return"]
        n, returns = played.sum(), totals / jnp.maximum(self.episodes, 1)
        mean = jnp.where(played, totals, 0).sum() / episodes
        squares = jnp.where(played, self.episodes * (returns - mean) ** 2, 0).sum()
        return jnp.where(n > 1, jnp.sqrt(squares / (jnp.maximum(n - 1, 1) * episodes)), jnp.inf)

    def metrics(self) -> Metrics:
        """Counts and means over all slots; those of "return", "episode_length" and "episode/..." over ended episodes.

        Of what the environment summarizes each number has its own, as "episode/speed" or, in a vector, "episode/end/1".
        """
        episodes = self.episodes.sum()
        ended = jnp.maximum(episodes, 1)
        metrics = {
            "env_steps": self.steps.sum(),
            "episodes": episodes,
            "restarts": jnp.sum(self.restarts),
            "bad_rewards": jnp.sum(self.bad_rewards),
            **{name: x.sum() / ended for name, x in self.totals.items()},
            "episode_length": self.lengths.sum() / ended,
        }
        means = apart({name: values.sum(0) / ended for name, values in self.info.items()})
        return metrics | {f"{EPISODE}{name}": x for name, x in means.items()}

    def evaluation(self) -> Metrics:
        """The metrics of a play that was an evaluation; returns are NaN where no episode ended."""
        metrics = {name: x for name, x in self.metrics().items() if name != "env_steps"}
        for name in self.totals:
            metrics[name] = jnp.where(metrics["episodes"] > 0, metrics[name], jnp.nan)
        return metrics | {"return_error": self.error}
