"""State of an environment between two steps, and statistics of a rollout."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from evorl import tree
from evorl.metrics import (
    EPISODE_PREFIX,
    GROUP_RETURN_PREFIX,
    LEARNED_RETURN,
    RETURN_DOF,
    RETURN_ERROR,
    split_components,
)
from evorl.types import Memory, Metrics, State
from evorl.vector_env import hosts

SUMMARIES = ("sum", "mean", "last")


@struct.dataclass
class EnvInstance:
    """One environment between two steps; the workflows hold n of them, leaves [n, ...]."""

    env_state: State
    obs: PyTree
    memory: Memory
    episode_return: PyTree  # undiscounted sum so far of the task's own rewards, with their structure
    episode_length: Int[Array, "*n"]  # so far
    episode_info: dict[str, Float[Array, "*n"]]  # sums or last values of the entries in episode_info, so far
    # by group: which members have ended; None unless members may end before the environment does
    members_done: dict[str, Bool[Array, "*n members"]] | None = None
    # for a step under way on the host: the action, next recurrent state, extras, and key data
    pending_step: tuple[PyTree, Memory, dict[str, PyTree], UInt32[Array, "*n words"]] | None = None
    learned_return: PyTree = None  # return so far of the rewards for learning; None if they are the task's own


@struct.dataclass
class EpisodeStats:
    """Episode statistics of n environments during one rollout, leaves [n, ...]."""

    steps: Int[Array, "*n"]
    episodes: Int[Array, "*n"]  # number of ended episodes
    returns: PyTree  # summed over ended episodes, of the task's own rewards, with their structure
    lengths: Int[Array, "*n"]  # summed over ended episodes
    # summaries of the entries in episode_info, summed over ended episodes
    info: dict[str, Float[Array, "*n"]] = struct.field(default_factory=dict)
    # number of episodes that were cut, by a non-finite number or, on the host, by a failed step
    restarts: Int[Array, "*n"] | int = 0
    bad_rewards: Int[Array, "*n"] | int = 0  # restarts with a NaN or infinite reward; not on the host
    ranking_group: str | None = struct.field(pytree_node=False, default=None)  # "" for all groups, None for one agent
    learned_returns: PyTree = None  # of the rewards for learning; None if they are the task's own
    retries_cut_episodes: bool = struct.field(
        pytree_node=False, default=False
    )  # whether a cut episode is replaced by another

    @classmethod
    def zeros(cls, envs: EnvInstance, ranked: str | None = None) -> "EpisodeStats":
        """Return the statistics of these environments before their first step."""
        zeros = tree.zeros_like(envs.episode_length)
        return cls(
            steps=zeros,
            episodes=zeros,
            returns=tree.zeros_like(envs.episode_return),
            lengths=zeros,
            info=tree.zeros_like(envs.episode_info),
            restarts=zeros,
            bad_rewards=zeros,
            ranking_group=ranked,
            learned_returns=tree.zeros_like(envs.learned_return),
            retries_cut_episodes=bool(hosts.collect_leases(envs.env_state)),
        )

    def add_step(self, valid: Any, ended: Any, lost: Any, episode: tuple[Any, Any, Any, Any]) -> "EpisodeStats":
        """Return the statistics after a step of all environments.

        Args:
            valid: Whether the step counts, bool [n].
            ended: Whether the step ended an episode, bool [n].
            lost: Whether the step was lost, which cuts the episode, bool [n].
            episode: Return, length, info summary and learned return of each episode; used only if it ended.
        """
        sums = self.returns, self.lengths, self.info, self.learned_returns
        of_episode = tree.select(ended, episode, tree.zeros_like(sums))
        returns, lengths, info, learned = jax.tree.map(jnp.add, sums, of_episode)
        numbers = {"steps": self.steps + valid, "episodes": self.episodes + ended, "restarts": self.restarts + lost}
        return replace(self, **numbers, returns=returns, lengths=lengths, info=info, learned_returns=learned)

    @property
    def step_attempts(self) -> Any:
        """Return the number of steps, including lost ones, which are not counted as environment steps."""
        return self.steps + self.restarts

    @property
    def num_ended_or_cut(self) -> Any:
        """Return the number of episodes that ended or were cut."""
        return self.episodes + self.restarts

    @property
    def num_completed(self) -> Any:
        """Return the number of completed episodes; a cut episode counts only if it is not replaced by another."""
        return self.episodes if self.retries_cut_episodes else self.num_ended_or_cut

    @property
    def episode_means(self) -> dict[str, Any]:
        """Return means over the ended episodes of each environment, leaves [n, ...]; 0 if none ended.

        The names are those in `episode_info`, "return" and, if a wrapper changed the rewards,
        "learned_return". The mean is NaN if an episode was cut and not replaced by another, so that no policy
        gains from such an end.
        """

        def mean(sums: dict[str, Any], episodes: Array, cut: Array) -> dict[str, Any]:
            return jax.tree.map(lambda x: jnp.where(cut, jnp.nan, x / jnp.maximum(episodes, 1)), sums)

        cut = jnp.broadcast_to(jnp.asarray(self.restarts) > 0, self.episodes.shape) & (not self.retries_cut_episodes)
        return jax.vmap(mean)(self.info | self.return_sums, self.episodes, cut)

    @property
    def return_sums(self) -> dict[str, Any]:
        """Return the sum of the returns of the ended episodes, as "return", leaves [n, ...].

        If a wrapper changed the rewards, "return" uses the task's own rewards and "learned_return" those of
        learning. In a multi-agent environment, the value is the mean over the members of the ranking group,
        or over all members. Each group also has its own, as "return/GROUP".
        """
        learned = {} if self.learned_returns is None else {LEARNED_RETURN: self._reduce_members(self.learned_returns)}
        of_groups = (
            {}
            if self.ranking_group is None
            else {f"{GROUP_RETURN_PREFIX}{name}": x.mean(-1) for name, x in self.returns.items()}
        )
        return {"return": self._reduce_members(self.returns)} | of_groups | learned

    def _reduce_members(self, returns: Any) -> Any:
        """Return one return per environment: with groups, the mean over the ranking group, or over all members."""
        if self.ranking_group is None:
            return returns
        return (
            returns[self.ranking_group] if self.ranking_group else jnp.concatenate(list(returns.values()), -1)
        ).mean(-1)

    @property
    def fitness_means(self) -> dict[str, Any]:
        """Return the episode means, with the learned return as "return" if it differs; evolution uses it as fitness."""
        means = self.episode_means
        return means | {"return": means.get(LEARNED_RETURN, means["return"])}

    @property
    def mean_return(self) -> Array:
        """Return the mean return of each environment, [n]; 0 if no episode ended, NaN as in `episode_means`."""
        return self.episode_means["return"]

    @property
    def known_returns(self) -> Array:
        """Return the mean return of each environment, [n]; NaN if no episode ended."""
        return jnp.where(self.episodes > 0, self.mean_return, jnp.nan)

    @property
    def return_error(self) -> Array:
        """Return the standard error of the mean return, []; infinite for fewer than two environments.

        It is estimated from the differences between environments. The mean over k episodes of an environment
        has 1 / k of the variance of one episode, so squared differences are weighted by k.
        """
        played, episodes, totals = self.episodes > 0, jnp.maximum(self.episodes.sum(), 1), self.return_sums["return"]
        n, returns = played.sum(), totals / jnp.maximum(self.episodes, 1)
        mean = jnp.where(played, totals, 0).sum() / episodes
        squares = jnp.where(played, self.episodes * (returns - mean) ** 2, 0).sum()
        return jnp.where(n > 1, jnp.sqrt(squares / (jnp.maximum(n - 1, 1) * episodes)), jnp.inf)

    def metrics(self) -> Metrics:
        """Return counts and means over all environments.

        "return", "episode_length" and "episode/..." are means over the ended episodes. Each number named by
        `episode_info` has its own metric, such as "episode/speed" or, for a component of a vector,
        "episode/end/1".
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
        """Return the metrics of a rollout that was an evaluation; returns are NaN if no episode ended."""
        metrics = {name: x for name, x in self.metrics().items() if name != "env_steps"}
        for name in self.return_sums:
            metrics[name] = jnp.where(metrics["episodes"] > 0, metrics[name], jnp.nan)
        freedom = jnp.minimum(metrics["episodes"], self.episodes.size) - 1  # all environments play equally often
        return metrics | {RETURN_ERROR: self.return_error, RETURN_DOF: freedom}
