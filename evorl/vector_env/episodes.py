"""What environments carry between two steps, and what they did during a play."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from evorl import tree
from evorl.metrics import EPISODE_PREFIX, GROUP_RETURN_PREFIX, LEARNED_RETURN, split_components
from evorl.types import Memory, Metrics, State
from evorl.vector_env import hosts

SUMMARIES = ("sum", "mean", "last")


@struct.dataclass
class EnvInstance:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: State
    obs: PyTree
    memory: Memory
    episode_return: PyTree  # undiscounted, so far, of the task's own rewards, as these are
    episode_length: Int[Array, "*n"]  # so far
    episode_info: dict[str, Float[Array, "*n"]]  # of what the environment summarizes, so far
    # of a game whose members may end before it does: which have, by group
    members_done: dict[str, Bool[Array, "*n members"]] | None = None
    # its last action, the memory after it, extras, and data of a key: of a step on the host under way
    pending_step: tuple[PyTree, Memory, dict[str, PyTree], UInt32[Array, "*n words"]] | None = None
    learned_return: PyTree = None  # of the rewards that are learned from, so far, where they are others; else None


@struct.dataclass
class EpisodeStats:
    """What n environments did during one play, each leaf [n, ...]."""

    steps: Int[Array, "*n"]
    episodes: Int[Array, "*n"]  # ended
    returns: PyTree  # of the task's own rewards, summed over ended episodes, as these are
    lengths: Int[Array, "*n"]  # summed over ended episodes
    # what the environment summarizes, summed over ended episodes
    info: dict[str, Float[Array, "*n"]] = struct.field(default_factory=dict)
    # episodes that were cut where a number was not finite or, on the host, a step failed
    restarts: Int[Array, "*n"] | int = 0
    bad_rewards: Int[Array, "*n"] | int = 0  # those of restarts where the reward was NaN or infinite, but on the host
    ranking_group: str | None = struct.field(pytree_node=False, default=None)  # of a game, the group named, "" for all
    learned_returns: PyTree = None  # of the rewards that are learned from, where they are others; else None
    retries_cut_episodes: bool = struct.field(
        pytree_node=False, default=False
    )  # whether another episode is played for one cut

    @classmethod
    def zeros(cls, envs: EnvInstance, ranked: str | None = None) -> "EpisodeStats":
        """Of these environments, before their first step."""
        nothing = tree.zeros_like((envs.episode_length, envs.episode_return, envs.episode_info))
        none, returns, info = nothing
        learned, hosted = tree.zeros_like(envs.learned_return), bool(hosts.collect_leases(envs.env_state))
        return cls(none, none, returns, none, info, none, none, ranked, learned, hosted)

    def add_step(self, counts: Any, ended: Any, lost: Any, episode: tuple[Any, Any, Any, Any]) -> "EpisodeStats":
        """Return the statistics after a step, [n] each: whether it counts, ends an episode, or was lost.

        Args:
            counts: bool.
            ended: bool.
            lost: bool.
            episode: return, length, summary and learned return of the episode, where it has ended.
        """
        sums = self.returns, self.lengths, self.info, self.learned_returns
        of_episode = tree.select(ended, episode, tree.zeros_like(sums))
        returns, lengths, info, learned = jax.tree.map(jnp.add, sums, of_episode)
        numbers = {"steps": self.steps + counts, "episodes": self.episodes + ended, "restarts": self.restarts + lost}
        return replace(self, **numbers, returns=returns, lengths=lengths, info=info, learned_returns=learned)

    @property
    def step_attempts(self) -> Any:
        """Steps that were tried, with those that count nowhere."""
        return self.steps + self.restarts

    @property
    def num_ended_or_cut(self) -> Any:
        """Return how many episodes have ended or were cut."""
        return self.episodes + self.restarts

    @property
    def num_completed(self) -> Any:
        """Return how many of the episodes to play are over."""
        return self.episodes if self.retries_cut_episodes else self.num_ended_or_cut

    @property
    def episode_means(self) -> dict[str, Any]:
        """Of the ended episodes in each environment, leaves [n, ...], 0 where none ended: what `episode_info` names,
        "return" and, where a wrapper has changed the rewards, "learned_return". NaN where one was cut and no other is
        played for it, so that no policy gains by such ends.
        """

        def mean(sums: dict[str, Any], episodes: Array, cut: Array) -> dict[str, Any]:
            return jax.tree.map(lambda x: jnp.where(cut, jnp.nan, x / jnp.maximum(episodes, 1)), sums)

        cut = jnp.broadcast_to(jnp.asarray(self.restarts) > 0, self.episodes.shape) & (not self.retries_cut_episodes)
        return jax.vmap(mean)(self.info | self.return_sums, self.episodes, cut)

    @property
    def return_sums(self) -> dict[str, Any]:
        """The "return" that ended episodes add up to, leaves [n, ...], as the rewards are, and the "learned_return".

        Of a game it is the mean over the members of the group that ranks, or over all, and each group has its own, as
        "return/GROUP".
        """
        learned = {} if self.learned_returns is None else {LEARNED_RETURN: self._reduce_members(self.learned_returns)}
        of_groups = (
            {}
            if self.ranking_group is None
            else {f"{GROUP_RETURN_PREFIX}{name}": x.mean(-1) for name, x in self.returns.items()}
        )
        return {"return": self._reduce_members(self.returns)} | of_groups | learned

    def _reduce_members(self, returns: Any) -> Any:
        """One return per environment; of a game that of the group that ranks, or the mean over all members."""
        if self.ranking_group is None:
            return returns
        return (
            returns[self.ranking_group] if self.ranking_group else jnp.concatenate(list(returns.values()), -1)
        ).mean(-1)

    @property
    def fitness_means(self) -> dict[str, Any]:
        """The means, of which "return" is that of the rewards that are learned from: what evolution is told."""
        means = self.episode_means
        return means | {"return": means.get(LEARNED_RETURN, means["return"])}

    @property
    def mean_return(self) -> Array:
        """[n], 0 where no episode ended, NaN as in means."""
        return self.episode_means["return"]

    @property
    def return_error(self) -> Array:
        """[], the standard error of the mean return, from how the environments differ; infinite for fewer than two.

        The mean of an environment with k episodes has 1 / k of an episode's variance, so that squares weigh by k.
        """
        played, episodes, totals = self.episodes > 0, jnp.maximum(self.episodes.sum(), 1), self.return_sums["return"]
        n, returns = played.sum(), totals / jnp.maximum(self.episodes, 1)
        mean = jnp.where(played, totals, 0).sum() / episodes
        squares = jnp.where(played, self.episodes * (returns - mean) ** 2, 0).sum()
        return jnp.where(n > 1, jnp.sqrt(squares / (jnp.maximum(n - 1, 1) * episodes)), jnp.inf)

    def metrics(self) -> Metrics:
        """Counts and means over all environments; "return", "episode_length" and "episode/..." are over ended episodes.

        Each number that `episode_info` names has its own, as "episode/speed" or, in a vector, "episode/end/1".
        """
        episodes = self.episodes.sum()
        ended = jnp.maximum(episodes, 1)
        metrics = {
            "env_steps": self.steps.sum(),
            "episodes": episodes,
            "restarts": jnp.sum(self.restarts),
            "bad_rewards": jnp.sum(self.bad_rewards),
            **{name: x.sum() / ended for name, x in self.return_sums.items()},
            "episode_length": self.lengths.sum() / ended,
        }
        means = split_components({name: values.sum(0) / ended for name, values in self.info.items()})
        return metrics | {f"{EPISODE_PREFIX}{name}": x for name, x in means.items()}

    def evaluation_metrics(self) -> Metrics:
        """The metrics of a play that was an evaluation; returns are NaN where no episode ended."""
        metrics = {name: x for name, x in self.metrics().items() if name != "env_steps"}
        for name in self.return_sums:
            metrics[name] = jnp.where(metrics["episodes"] > 0, metrics[name], jnp.nan)
        return metrics | {"return_error": self.return_error}
