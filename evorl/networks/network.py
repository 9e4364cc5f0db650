"""From an observation to what a network gives of it: an encoder, a core that remembers, and a body."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.keys import require_key
from evorl.networks.features import features
from evorl.networks.mlp import activated, check_layers
from evorl.spaces import Space, seen, shapes, visible
from evorl.types import Key, Memory, Params, Transition


@runtime_checkable
class Encoder(Protocol):
    """A module of flax that makes of observations the features that a network takes."""

    def __call__(self, space: Space, obs: Any) -> Array:
        """Features [*batch, n] of observations of a space, leaves [*batch, *shape]."""
        ...


@runtime_checkable
class Core(Protocol):
    """A module of flax that remembers. Its memory is a pytree of arrays; () for none."""

    def initial(self) -> Memory:
        """The memory of one at the start of an episode, which has no parameters."""
        ...

    def step(self, memory: Memory, x: Float[Array, "*batch n"]) -> tuple[Memory, Float[Array, "*batch m"]]:
        """The memory that has seen x too, leaves [*batch, ...], and what is made of both."""
        ...

    def sequence(
        self, memory: Memory, x: Float[Array, "steps *batch n"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Memory, Float[Array, "steps *batch m"]]:
        """The memory that has seen each of x, before any reset, and what is made of it; leaves [steps, *batch, ...].

        They begin with memory, leaves [*batch, ...]; where an episode ended, the next step begins with initial().
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
        return activated(features(space, obs), self.dense, self.activation)


class Feedforward(nn.Module):
    """A core that remembers nothing."""

    @nn.nowrap
    def initial(self) -> Memory:
        return ()

    def step(self, memory: Memory, x: Array) -> tuple[Memory, Array]:
        return memory, x

    def sequence(self, memory: Memory, x: Array, ended: Array) -> tuple[Memory, Array]:
        del ended
        return memory, x


FLAT, FEEDFORWARD = Flat(), Feedforward()


def unmasked(space: Space, obs: Any, outputs: Any) -> Any:
    """outputs, whatever is legal."""
    del space, obs
    return outputs


class Network(nn.Module):
    """What a body makes of what an encoder and a core have made of observations; its parameters are their own.

    Which choices are legal it does not see: `masked` makes of (space, observations, outputs) the outputs that know it.
    """

    space: Space
    body: nn.Module
    encoder: Encoder = Flat()
    core: Core = Feedforward()
    masked: Callable[[Space, Any, Any], Any] = unmasked

    def setup(self) -> None:
        """The body's parameters lie where they would alone."""
        nn.share_scope(self, self.body)

    def __call__(self, obs: Any, *args: Any) -> Any:
        """Of a batch of observations and of what else the body takes, where nothing is remembered."""
        return self.step((), obs, *args)[1]

    def step(self, memory: Memory, obs: Any, *args: Any) -> tuple[Memory, Any]:
        """The memory after an observation, and what the body gives; of a batch of both, leaves [*batch, ...]."""
        memory, x = self.core.step(memory, self.encode(obs))
        return memory, self.made(obs, x, *args)

    def sequence(self, memory: Memory, obs: Any, ended: Bool[Array, "steps ..."], *args: Any) -> tuple[Memory, Any]:
        """The memory after each observation, leaves [steps, *batch, ...], before any reset, and what the body gives.

        They began with memory, leaves [*batch, ...].
        """
        memories, x = self.core.sequence(memory, self.encode(obs), ended)
        return memories, self.made(obs, x, *args)

    def encode(self, obs: Any) -> Array:
        """Features [*batch, n] of observations."""
        return self.encoder(visible(self.space), seen(self.space, obs))

    def made(self, obs: Any, x: Array, *args: Any) -> Any:
        """What the body gives of x, which was made of observations."""
        return self.masked(self.space, obs, self.body(x, *args))

    def seen(self, batch: Transition, memory: Memory) -> tuple[Array, Array]:
        """What encoder and core make of the observations that are learned from, and of their successors.

        Of a batch of rows; or of sequences, leaves [steps, *batch, ...], which began with memory, leaves [*batch, ...].
        """
        if batch.burn_in:
            first = tree.index(replace(batch, memory=(), weight=()), slice(batch.burn_in))
            memories, _ = self.core.sequence(memory, self.encode(first.obs), first.ended)
            last, ended = tree.index((memories, first.ended), -1)
            memory = jax.lax.stop_gradient(tree.where(ended, tree.broadcast(self.core.initial(), *ended.shape), last))
        t = batch.learned
        memories, x = self.core.sequence(memory, self.encode(t.obs), t.ended)
        return x, self.core.step(memories, self.encode(t.next_obs))[1]

    def both(self, batch: Transition, memory: Memory, *args: Any) -> tuple[Any, Any]:
        """What the body gives of the observations that are learned from, and of their successors."""
        x, following = self.seen(batch, memory)
        t = batch.learned
        return self.made(t.obs, x, *args), self.made(t.next_obs, following, *args)

    def now(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """What the body gives of the observations that are learned from."""
        return self.made(batch.learned.obs, self.seen(batch, memory)[0], *args)

    def following(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """What the body gives of their successors, seen after what they follow."""
        return self.made(batch.learned.next_obs, self.seen(batch, memory)[1], *args)

    @nn.nowrap
    def begin(self, batch: Transition) -> Memory:
        """The memory at the start of an episode for each of a batch of sequences, leaves [batch, ...]."""
        return tree.broadcast(self.core.initial(), *batch.ended.shape[1:])

    @nn.nowrap
    def fresh(self, key: Key, *args: Any) -> Params:
        """Parameters before any learning; args are examples of what else the body takes."""
        require_key(key)
        return self.init(key, self.core.initial(), tree.zeros(shapes(self.space)), *args, method="step")
