"""From an observation to what a network gives of it: an encoder, a core that remembers, and a body."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Bool, Float
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.keys import require_key
from evorl.networks.features import features, require_space
from evorl.networks.mlp import apply_dense_layers, check_layers
from evorl.spaces import Space, get_visible_obs, get_visible_space, to_shape_structs
from evorl.types import Key, Memory, Params, Transition


@runtime_checkable
class Encoder(Protocol):
    """A module of flax that makes of observations the features that a network takes."""

    def __call__(self, space: Space, obs: Any) -> Array:
        """Features [*batch, n] of observations of a space, leaves [*batch, *shape]."""
        ...


@runtime_checkable
class Core(Protocol):
    """A module of flax that remembers. Its memory is a pytree of arrays; None for none."""

    def initial_memory(self) -> Memory:
        """The memory of one at the start of an episode, which has no parameters."""
        ...

    def step(self, memory: Memory, x: Float[Array, "*batch n"]) -> tuple[Memory, Float[Array, "*batch m"]]:
        """The memory that has seen x too, leaves [*batch, ...], and what is made of both."""
        ...

    def sequence(
        self, memory: Memory, x: Float[Array, "steps *batch n"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Memory, Float[Array, "steps *batch m"]]:
        """The memory that has seen each of x, before any reset, and what is made of it; leaves [steps, *batch, ...].

        They begin with memory, leaves [*batch, ...]; where an episode ended, the next step begins with
        initial_memory().
        """
        ...


class Flat(nn.Module):
    """Observations of any space as vectors, then linear layers, each with activation; by default none."""

    dense: Sequence[int] = ()
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_layers(tuple(self.dense), self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, space: Space, obs: Any) -> Float[Array, "*batch n"]:
        return apply_dense_layers(features(space, obs), self.dense, self.activation)


class Feedforward(nn.Module):
    """A core that remembers nothing."""

    @nn.nowrap
    def initial_memory(self) -> Memory:
        return None

    def step(self, memory: Memory, x: Array) -> tuple[Memory, Array]:
        return memory, x

    def sequence(self, memory: Memory, x: Array, ended: Array) -> tuple[Memory, Array]:
        del ended
        return memory, x


FLAT, FEEDFORWARD = Flat(), Feedforward()


def ignore_action_mask(space: Space, obs: Any, outputs: Any) -> Any:
    """outputs, whatever is legal."""
    del space, obs
    return outputs


class Network(nn.Module):
    """What a body makes of what an encoder and a core have made of observations; its parameters are their own.

    Which choices are legal it does not see: `mask_fn` makes of (space, observations, outputs) the outputs that know it.
    """

    space: Space | None
    body: nn.Module
    encoder: Encoder = Flat()
    core: Core = Feedforward()
    mask_fn: Callable[[Space, Any, Any], Any] = ignore_action_mask

    def setup(self) -> None:
        """The body's parameters lie where they would alone."""
        nn.share_scope(self, self.body)

    def __call__(self, obs: Any, *args: Any) -> Any:
        """Of a batch of observations and of what else the body takes, where nothing is remembered."""
        return self.step(None, obs, *args)[1]

    def step(self, memory: Memory, obs: Any, *args: Any) -> tuple[Memory, Any]:
        """The memory after an observation, and what the body gives; of a batch of both, leaves [*batch, ...]."""
        memory, x = self.core.step(memory, self.encode(obs))
        return memory, self.head(obs, x, *args)

    def sequence(self, memory: Memory, obs: Any, ended: Bool[Array, "steps ..."], *args: Any) -> tuple[Memory, Any]:
        """The memory after each observation, leaves [steps, *batch, ...], before any reset, and what the body gives.

        They began with memory, leaves [*batch, ...].
        """
        memories, x = self.core.sequence(memory, self.encode(obs), ended)
        return memories, self.head(obs, x, *args)

    def encode(self, obs: Any) -> Array:
        """Features [*batch, n] of observations."""
        require_space(self.space, "observation_space")
        assert self.space is not None
        return self.encoder(get_visible_space(self.space), get_visible_obs(self.space, obs))

    def head(self, obs: Any, x: Array, *args: Any) -> Any:
        """What the body gives of x, which was made of observations."""
        assert self.space is not None
        return self.mask_fn(self.space, obs, self.body(x, *args))

    def encode_batch(self, batch: Transition, memory: Memory) -> tuple[Array, Array]:
        """What encoder and core make of the observations that are learned from, and of their successors.

        Of a batch of rows; or of sequences, leaves [steps, *batch, ...], which began with memory, leaves [*batch, ...].
        """
        if batch.burn_in:
            first = tree.index(replace(batch, memory=None, weight=None), slice(batch.burn_in))
            memories, _ = self.core.sequence(memory, self.encode(first.obs), first.is_done)
            last, ended = tree.index((memories, first.is_done), -1)
            memory = jax.lax.stop_gradient(
                tree.select(ended, tree.broadcast(self.core.initial_memory(), *ended.shape), last)
            )
        t = batch.training_steps
        memories, x = self.core.sequence(memory, self.encode(t.obs), t.is_done)
        return x, self.core.step(memories, self.encode(t.next_obs))[1]

    def values_and_next(self, batch: Transition, memory: Memory, *args: Any) -> tuple[Any, Any]:
        """What the body gives of the observations that are learned from, and of their successors."""
        x, following = self.encode_batch(batch, memory)
        t = batch.training_steps
        return self.head(t.obs, x, *args), self.head(t.next_obs, following, *args)

    def values(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """What the body gives of the observations that are learned from."""
        return self.head(batch.training_steps.obs, self.encode_batch(batch, memory)[0], *args)

    def next_values(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """What the body gives of their successors, seen after what they follow."""
        return self.head(batch.training_steps.next_obs, self.encode_batch(batch, memory)[1], *args)

    @nn.nowrap
    def initial_memories(self, batch: Transition) -> Memory:
        """The memory at the start of an episode for each of a batch of sequences, leaves [batch, ...]."""
        return tree.broadcast(self.core.initial_memory(), *batch.is_done.shape[1:])

    @nn.nowrap
    def init_params(self, key: Key, *args: Any) -> Params:
        """Parameters before any learning; args are examples of what else the body takes."""
        require_key(key)
        assert self.space is not None
        return self.init(
            key, self.core.initial_memory(), tree.zeros_like(to_shape_structs(self.space)), *args, method="step"
        )
