"""From an observation to what a network gives of it: an encoder, a core that remembers, and a body."""

from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.networks.features import features
from evorl.spaces import Space, shapes
from evorl.types import Key, Memory, Params


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
    """Observations of any space as vectors. It has no parameters."""

    @nn.compact
    def __call__(self, space: Space, obs: Any) -> Float[Array, "*batch n"]:
        return features(space, obs)


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


class Network(nn.Module):
    """What a body makes of what an encoder and a core have made of observations; its parameters are their own."""

    space: Space
    body: nn.Module
    encoder: Encoder = Flat()
    core: Core = Feedforward()

    def setup(self) -> None:
        """The body's parameters lie where they would alone."""
        nn.share_scope(self, self.body)

    def __call__(self, obs: Any, *args: Any) -> Any:
        """Of a batch of observations and of what else the body takes, where nothing is remembered."""
        return self.step((), obs, *args)[1]

    def step(self, memory: Memory, obs: Any, *args: Any) -> tuple[Memory, Any]:
        """The memory after an observation, and what the body gives; of a batch of both, leaves [*batch, ...]."""
        memory, x = self.core.step(memory, self.encoder(self.space, obs))
        return memory, self.body(x, *args)

    def sequence(self, memory: Memory, obs: Any, ended: Bool[Array, "steps ..."], *args: Any) -> tuple[Memory, Any]:
        """The memory after each observation, leaves [steps, *batch, ...], before any reset, and what the body gives.

        They began with memory, leaves [*batch, ...].
        """
        memories, x = self.core.sequence(memory, self.encoder(self.space, obs), ended)
        return memories, self.body(x, *args)

    @nn.nowrap
    def fresh(self, key: Key, *args: Any) -> Params:
        """Parameters before any learning; args are examples of what else the body takes."""
        return self.init(key, self.core.initial(), tree.zeros(shapes(self.space)), *args, method="step")
