"""Plans of rollouts: who acts from which starts for how long, and where the transitions go."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int
from typing_extensions import Protocol, runtime_checkable

from evorl import mesh
from evorl.types import Key, Params, Transition
from evorl.vector_env.env_batch import EnvBatch
from evorl.vector_env.episodes import EnvInstance, EpisodeStats

Stored = TypeVar("Stored")
UNLIMITED = jnp.iinfo(jnp.int32).max  # episodes or steps that no play reaches


@runtime_checkable
class EpisodeStarts(Protocol):
    """The starts of episodes, as a value of a plan. What is `left` of them is carried from step to step."""

    def start_episodes(
        self,
        world: EnvBatch,
        key: Key,
        group: Int[Array, " n"] | None,
        envs: EnvInstance | None,
        restart: Bool[Array, ""],
    ) -> tuple[EnvInstance, Any]:
        """Return the environments, at their first start where they restart, and what is left.

        Args:
            world: the environments.
            key: of the starts.
            group: environments of the same group start alike; None where each has its own, in order.
            envs: as they are; None before their first start.
            restart: whether they begin anew.
        """
        ...

    def restart_ended(
        self,
        world: EnvBatch,
        keys: Key,
        envs: EnvInstance,
        ended: Bool[Array, " n"],
        episodes: Int[Array, " n"],
        left: Any,
    ) -> tuple[EnvInstance, Any]:
        """Return the environments with a new start where ended, each after so many episodes, and what is left."""
        ...

    def idle_mask(self, left: Any) -> Bool[Array, " n"] | bool:
        """Return which environments have found no start, and wait."""
        ...


@struct.dataclass
class RolloutPlan:
    """A plan for n environments. A workflow makes it; a workflow around that may change it before it is played."""

    starts: EpisodeStarts
    restart: Bool[Array, ""] | bool = True  # from new starts, rather than on from where the environments are
    episodes: Int[Array, "*n"] | int | None = None  # of each environment; None for no end
    steps: Int[Array, ""] | int | None = None  # of each environment; None for no end
    # below n: environments of the same group have common random numbers; None for each its own
    seed_group: Int[Array, " n"] | None = None
    params: Params = None  # leaves [actors, ...]: by whom the environments act, as many each, side by side
    explores: Bool[Array, "*actors"] | bool | None = None  # whether they explore; None for never
    random_actions: Bool[Array, ""] | bool | None = None  # whether they act at random instead; None for never
    stores: Bool[Array, ""] | bool | None = None  # whether what they see is stored, where that is a choice
    releases: Bool[Array, ""] | bool = False  # whether the environments are of no use afterwards

    def local_shard(self, n: int, shards: int) -> "RolloutPlan":
        """Return the part of the plan for this device, where n environments are spread over several, else all of it."""
        if shards == 1:
            return self
        group = jnp.arange(n) if self.seed_group is None else self.seed_group

        def shard_leaf(x: Any) -> Any:
            return mesh.local_shard(x, mesh.ENVS, len(x) // shards) if jnp.ndim(x) and len(x) > 1 else x

        params, explores, episodes, group = jax.tree.map(shard_leaf, (self.params, self.explores, self.episodes, group))
        return replace(self, params=params, explores=explores, episodes=episodes, seed_group=group)

    def split_keys(self, key: Key, total_envs: int) -> tuple[Key, Key]:
        """Return the key of the starts and the keys of the environments [n].

        Args:
            key: of the rollout.
            total_envs: environments on all devices.
        """
        key_starts, key_play = jax.random.split(key)
        keys = jax.random.split(key_play, total_envs)
        return key_starts, keys if self.seed_group is None else keys[self.seed_group]

    def find_unfinished(self, stats: EpisodeStats, left: Any, steps: Any) -> Bool[Array, " n"]:
        """Return which environments have not had their episodes or so many steps, and have a start."""
        mask = jnp.broadcast_to(~jnp.asarray(self.starts.idle_mask(left)), stats.steps.shape)
        for done, most in ((stats.num_completed, self.episodes), (stats.step_attempts, steps)):
            mask = mask if most is None else mask & (done < most)
        return mask


@dataclass(frozen=True)
class TransitionStore(Generic[Stored]):
    """A buffer of transitions: after `chunk` steps it is add(buffer, transitions [chunk, n, ...], mask [chunk, n])."""

    chunk: int
    buffer: Stored
    add: Callable[[Stored, Transition, Bool[Array, "chunk n"]], Stored]


RolloutCarry = tuple[EnvInstance, EpisodeStats, Any]  # the last is what the starts have left


class RolloutSteps(NamedTuple):
    """The steps of a rollout, on the device (device_rollout) or on the host (host_rollout)."""

    begin: RolloutCarry
    step: Callable[[RolloutCarry, None], tuple[RolloutCarry, tuple[Transition, Bool[Array, " n"]]]]  # to be scanned
    find_active: Callable[[RolloutCarry], Bool[Array, " n"]]
    # of transitions [steps, n, ...] and which of them count
    arrange: Callable[[Transition, Bool[Array, "steps n"]], tuple[Transition, Bool[Array, "steps n"]]]
    finish: Callable[[EnvInstance], EnvInstance]  # what becomes of the environments when all have ended


def truncate_before_lost(transitions: Transition) -> Transition:
    """Truncate transitions [steps, n, ...] where the next one is lost (its weight is 0), and drop the weights."""
    lost = transitions.weight == 0
    ends = lost | jnp.concatenate([lost[1:], jnp.zeros_like(lost[:1])])
    return replace(transitions, truncated=transitions.truncated | (ends & ~transitions.terminated), weight=None)
