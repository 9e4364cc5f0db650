"""Rollout plans: which actors act, from which starts, for how long, and where transitions are stored."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.types import Key, Params, Transition
from evorl.vector_env.env_batch import EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats

Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # number of episodes or steps that no rollout reaches


@runtime_checkable
class EpisodeStarts(Protocol):
    """Starts of episodes, as a value of a plan; `starts_state` is carried from step to step."""

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        """Place the environments that restart at their first start.

        Args:
            world: Batch of environments.
            key: Random key of the starts.
            group: Environments with the same index start alike, shape [n]; None for separate starts, in
                order.
            envs: Environments as they are; None before their first start.
            restart: Whether the environments restart, [].

        Returns:
            The environments and the remaining starts.
        """
        ...

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        starts_state: Any,
    ) -> tuple[EnvInstance, Any]:
        """Place the environments whose episode ended at a new start.

        Args:
            world: Batch of environments.
            keys: Random keys of the environments in this rollout, shape [n].
            envs: Environments, leaves [n, ...].
            ended: Whether an environment needs a new start, shape [n].
            episodes: Number of episodes that ended or were cut in each environment, shape [n].
            starts_state: State of the starts: those that remain, or what they are computed from.

        Returns:
            The environments and the remaining starts.
        """
        ...

    def idle_mask(self, starts_state: Any) -> Bool[Array, " n"] | bool:
        """Return which environments found no start and are idle.

        Args:
            starts_state: State of the starts: those that remain, or what they are computed from.

        Returns:
            A mask [n], or False if none ever is.
        """
        ...


@struct.dataclass
class RolloutPlan:
    """Plan of a rollout of n environments, made by a workflow; an outer workflow may change it before it runs."""

    starts: EpisodeStarts
    restart: Bool[Array, ""] | bool = True  # start new episodes instead of continuing from the state of envs
    episodes: Int[Array, "*n"] | int | None = None  # per environment; None for no limit
    steps: Int[Array, ""] | int | None = None  # per environment; None for no limit
    # indices below n: environments with the same index use common random numbers; None for separate ones
    seed_group: Int[Array, " n"] | None = None
    params: Params = None  # of the actors, leaves [actors, ...]; each acts in n / actors consecutive environments
    explores: Bool[Array, "*actors"] | bool | None = None  # whether the actors explore; None for never
    random_actions: Bool[Array, ""] | bool | None = None  # whether they act randomly instead; None for never
    stores: Bool[Array, ""] | bool | None = None  # whether to store the transitions; None if that is not optional
    releases: Bool[Array, ""] | bool = False  # whether the environments are released at the end

    def sharded_leaves(self) -> "RolloutPlan":
        """Return which leaves have the actors or the environments as their leading axis, for `mesh.shard_over_axis`."""
        replicated = jax.tree.map(lambda _: False, self)
        leads = lambda x: jnp.ndim(x) > 0 and len(x) > 1  # noqa: E731
        by_actor_or_env = (self.params, self.explores, self.episodes, self.seed_group)
        params, explores, episodes, group = jax.tree.map(leads, by_actor_or_env)
        return replace(replicated, params=params, explores=explores, episodes=episodes, seed_group=group)

    def split_keys(self, key: Key, total_envs: int) -> tuple[Key, Key]:
        """Return the key of the starts and the keys of the environments, [n], from the key of the rollout.

        `total_envs` is the number of environments on all devices.
        """
        key_starts, key_play = jax.random.split(key)
        keys = jax.random.split(key_play, total_envs)
        return key_starts, keys if self.seed_group is None else keys[self.seed_group]

    def find_unfinished(self, stats: EpisodeStats, starts_state: Any, steps: Any) -> Bool[Array, " n"]:
        """Return which environments have a start and have not completed their episodes or `steps` steps."""
        mask = jnp.broadcast_to(~jnp.asarray(self.starts.idle_mask(starts_state)), stats.steps.shape)
        for done, most in ((stats.num_completed, self.episodes), (stats.step_attempts, steps)):
            mask = mask if most is None else mask & (done < most)
        return mask


@dataclass(frozen=True)
class TransitionStore(Generic[Stored]):
    """Buffer of transitions, updated every `scan_length` steps by add(buffer, transitions, mask).

    The transitions have leaves [scan_length, n, ...], and the mask [scan_length, n] says which of them count.
    """

    scan_length: int
    buffer: Stored
    add: Callable[[Stored, Transition, Bool[Array, "scan_length n"]], Stored]


RolloutCarry = tuple[EnvInstance, EpisodeStats, Any]  # the last entry is the remaining starts


class RolloutSteps(NamedTuple):
    """Functions of a rollout's steps, on the device (device_rollout) or on the host (host_rollout)."""

    begin: RolloutCarry
    step: Callable[[RolloutCarry, None], tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]]  # for jax.lax.scan
    find_active: Callable[[RolloutCarry], Bool[Array, " n"]]
    # post-processes transitions [steps, n, ...] and the mask of those that count
    arrange: Callable[[Transition, Bool[Array, "steps n"]], tuple[Transition, Bool[Array, "steps n"]]]
    finish: Callable[[EnvInstance], EnvInstance]  # applied to the environments at the end


def truncate_before_lost(transitions: Transition) -> Transition:
    """Truncate transitions [steps, n, ...] at and before each lost one (its weight is 0), and remove the weights."""
    lost = transitions.weight == 0
    ends = lost | jnp.concatenate([lost[1:], jnp.zeros_like(lost[:1])])
    return replace(transitions, truncated=transitions.truncated | (ends & ~transitions.terminated), weight=None)
