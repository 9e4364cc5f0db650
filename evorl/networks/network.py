"""From an observation to what a network gives of it: an encoder, a core that remembers, and a body."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
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
    """A module of flax that remembers, one sequence at a time. Its memory is a pytree of arrays; () for none."""

    def initial(self) -> Memory:
        """The memory at the start of an episode, which has no parameters."""
        ...

    def step(self, memory: Memory, x: Float[Array, " n"]) -> tuple[Memory, Float[Array, " m"]]:
        """The memory that has seen x too, and what is made of both."""
        ...

    def sequence(
        self, memory: Memory, x: Float[Array, "steps n"], ended: Bool[Array, " steps"]
    ) -> tuple[Memory, Float[Array, "steps m"]]:
        """The memory that has seen each of x, before any reset, and what is made of it; leaves [steps, ...].

        Where an episode ended, the next step begins with initial().
        """
        ...


class Flat(nn.Module):
    """Observations of any space as vectors. It has no parameters."""

    @nn.compact
    def __call__(self, space: Space, obs: Any) -> Float[Array, "*batch n"]:
        return features(space, obs)


class Feedforward(nn.Module):
    """A core that remembers nothing, and takes a batch of any shape for a step or a sequence."""

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
        return self.body(self.encoder(self.space, obs), *args)

    def step(self, memory: Memory, obs: Any) -> tuple[Memory, Any]:
        """The memory after one observation, and what the body gives."""
        memory, x = self.core.step(memory, self.encoder(self.space, obs))
        return memory, self.body(x)

    def steps(self, memory: Memory, obs: Any) -> Any:
        """What the body gives of observations, each with a memory of its own, leaves [steps, slots, ...]."""
        x = self.encoder(self.space, obs)
        return self.body(_mapped(_mapped(type(self.core).step, 0), 0)(self.core, memory, x)[1])

    def sequence(self, memory: Memory, obs: Any, ended: Bool[Array, "steps slots"]) -> tuple[Memory, Any]:
        """The memory after each of observations, leaves [steps, slots, ...], before any reset, and what the body gives.

        They began with memory, leaves [slots, ...].
        """
        x = self.encoder(self.space, obs)
        memories, x = _mapped(type(self.core).sequence, 1)(self.core, memory, x, ended)
        return memories, self.body(x)

    @nn.nowrap
    def fresh(self, key: Key, *args: Any) -> Params:
        """Parameters before any learning; args are examples of what else the body takes."""
        obs = tree.zeros(shapes(self.space))
        if args:
            return self.init(key, obs, *args)
        return self.init(key, self.core.initial(), obs, method="step")


def _mapped(f: Callable[..., Any], axis: int) -> Callable[..., Any]:
    """f(core, memory, *args) for each along the axis of args, the first of memory; at once where there is no memory."""

    def mapped(core: Any, memory: Memory, *args: Any) -> Any:
        if not jax.tree.leaves(memory):
            return f(core, memory, *args)
        axes: Any = (0, *(axis for _ in args))
        shared = partial(nn.vmap, variable_axes={"params": None}, split_rngs={"params": False})
        return shared(f, in_axes=axes, out_axes=axis)(core, memory, *args)

    return mapped
