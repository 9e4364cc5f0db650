"""What slots carry between two steps, and what they did during a play."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from evorl import tree
from evorl.metrics import EPISODE, RETURN, apart
from evorl.types import Metrics
from evorl.vector_env import hosts

SUMMARIES = ("sum", "mean", "last")


@struct.dataclass
class EnvSlot:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: Any
    obs: Any
    memory: Any
    episode_return: Any  # undiscounted, so far, as the rewards are
    episode_length: Any  # [] int32, so far
    episode_info: Any  # of what the environment summarizes, so far
    gone: Any = ()  # of a game whose members may end before it does, which have: bool [members] by group
    sent: Any = ()  # its last action, the memory after it, extras, and data of a key: of a step on the host under way


@struct.dataclass
class EpisodeStats:
    """What n slots did during one play, each leaf [n, ...]."""

    steps: Any  # int32
    episodes: Any  # int32, ended
    returns: Any  # summed over ended episodes, as the rewards are
    lengths: Any  # int32, summed over ended episodes
    info: Any = struct.field(default_factory=dict)  # what the environment summarizes, summed over ended episodes
    restarts: Any = ()  # int32, of environments on the host those that failed in the middle of an episode; else ()
    ranked: str | None = struct.field(pytree_node=False, default=None)  # of a game, the group named, "" for all

    @classmethod
    def zeros(cls, slots: EnvSlot, ranked: str | None = None) -> "EpisodeStats":
        """Of these slots, before their first step."""
        nothing = tree.zeros((slots.episode_length, slots.episode_return, slots.episode_info))
        none, returns, info = nothing
        return cls(none, none, returns, none, info, none if hosts.held(slots.env_state) else (), ranked)

    @property
    def turns(self) -> Any:
        """Steps that were tried, with those that the host gave no answer to."""
        return self.steps if isinstance(self.restarts, tuple) else self.steps + self.restarts

    @property
    def begun(self) -> Any:
        """How many episodes have come to an end, or failed."""
        return self.episodes if isinstance(self.restarts, tuple) else self.episodes + self.restarts

    @property
    def means(self) -> dict[str, Any]:
        """Of the ended episodes of each slot, leaves [n, ...], 0 where none ended: what the environment summarizes, by
        name, and "return".
        """
        of_each = jax.vmap(lambda sums, episodes: jax.tree.map(lambda x: x / jnp.maximum(episodes, 1), sums))
        return of_each(self.info | self.totals, self.episodes)

    @property
    def totals(self) -> dict[str, Any]:
        """The "return" that ended episodes add up to, leaves [n, ...], as the rewards are.

        Of a game it is the mean over the members of the group that ranks, or over all, and each group has its own, as
        "return/GROUP".
        """
        if self.ranked is None:
            return {"return": self.returns}
        of_groups = {name: x.mean(-1) for name, x in self.returns.items()}
        everyone = jnp.concatenate(list(self.returns.values()), -1).mean(-1)
        of_ranked = of_groups[self.ranked] if self.ranked else everyone
        return {"return": of_ranked} | {f"{RETURN}{name}": x for name, x in of_groups.items()}

    @property
    def mean_return(self) -> Array:
        """[n], 0 where no episode ended."""
        return self.means["return"]

    @property
    def error(self) -> Array:
        """[], the standard error of the mean return, from what the slots differ by; infinite for fewer than two."""
        played = self.episodes > 0
        n = played.sum()
        mean = jnp.where(played, self.mean_return, 0).sum() / jnp.maximum(n, 1)
        squares = jnp.where(played, (self.mean_return - mean) ** 2, 0).sum()
        return jnp.where(n > 1, jnp.sqrt(squares / jnp.maximum(n * (n - 1), 1)), jnp.inf)

    def metrics(self) -> Metrics:
        """Counts and means over all slots; those of "return", "episode_length" and "episode/..." over ended episodes.

        Of what the environment summarizes each number has its own, as "episode/speed" or, in a vector, "episode/end/1".
        """
        episodes = self.episodes.sum()
        ended = jnp.maximum(episodes, 1)
        metrics = {
            "env_steps": self.steps.sum(),
            "episodes": episodes,
            **{name: x.sum() / ended for name, x in self.totals.items()},
            "episode_length": self.lengths.sum() / ended,
        }
        if not isinstance(self.restarts, tuple):
            metrics |= {"restarts": self.restarts.sum()}
        means = apart({name: values.sum(0) / ended for name, values in self.info.items()})
        return metrics | {f"{EPISODE}{name}": x for name, x in means.items()}

    def evaluation(self) -> Metrics:
        """The metrics of a play that was an evaluation."""
        return {name: x for name, x in self.metrics().items() if name != "env_steps"} | {"return_error": self.error}
