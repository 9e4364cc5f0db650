"""Network of an agent: an encoder of observations, a recurrent core, and a body."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Bool, Float
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.keys import require_key
from evorl.networks.encoders import CNN, has_image
from evorl.networks.features import features, require_space
from evorl.networks.mlp import apply_dense_layers, check_layers
from evorl.spaces import (
    Space,
    get_value_obs,
    get_value_space,
    get_visible_obs,
    get_visible_space,
    to_shape_structs,
)
from evorl.types import Key, Memory, Params, Transition


@runtime_checkable
class Encoder(Protocol):
    """Flax module that maps observations to features."""

    def __call__(self, space: Space, obs: Any) -> Array:
        """Return the features of observations.

        Args:
            space: Space of the observations.
            obs: Observations, leaves [*batch, *shape].

        Returns:
            Features, shape [*batch, n].
        """
        ...


@runtime_checkable
class Core(Protocol):
    """Flax module with a recurrent state, here called memory: a pytree of arrays, or None."""

    def initial_memory(self) -> Memory:
        """Return the memory of one environment at the start of an episode; it has no parameters."""
        ...

    def step(self, memory: Memory, x: Float[Array, "*batch n"]) -> tuple[Memory, Float[Array, "*batch m"]]:
        """Process one time step.

        Args:
            memory: Memory before the step, leaves [*batch, ...].
            x: Features, shape [*batch, n].

        Returns:
            The memory after the step, leaves [*batch, ...], and the output [*batch, m].
        """
        ...

    def sequence(
        self, memory: Memory, x: Float[Array, "steps *batch n"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Memory, Float[Array, "steps *batch m"]]:
        """Process a sequence of time steps.

        Args:
            memory: Memory before the first step, leaves [*batch, ...].
            x: Features, shape [steps, *batch, n].
            ended: Whether the episode ended with each step, shape [steps, *batch]; the next step then starts
                from initial_memory().

        Returns:
            The memory after each step, before any reset, leaves [steps, *batch, ...], and the outputs [steps,
            *batch, m].
        """
        ...


class Flat(nn.Module):
    """Encoder that flattens observations of any space, followed by linear layers.

    Args:
        dense: Widths of the linear layers, each with activation; () for none.
        activation: Name of the activation function: "relu", "leaky_relu", "tanh", "swish", "elu" or "gelu".

    Raises:
        OptionError: If a width or the name of the activation is invalid.
    """

    dense: Sequence[int] = ()
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_layers(tuple(self.dense), self.activation)
        super().__post_init__()

    @nn.compact
    def __call__(self, space: Space, obs: Any) -> Float[Array, "*batch n"]:
        return apply_dense_layers(features(space, obs), self.dense, self.activation)


class Feedforward(nn.Module):
    """Core without recurrent state, whose output is its input."""

    @nn.nowrap
    def initial_memory(self) -> Memory:
        return None

    def step(self, memory: Memory, x: Array) -> tuple[Memory, Array]:
        return memory, x

    def sequence(self, memory: Memory, x: Array, ended: Array) -> tuple[Memory, Array]:
        """Return the memory and the input unchanged."""
        del ended
        return memory, x


FLAT, FEEDFORWARD = Flat(), Feedforward()


def ignore_action_mask(space: Space, obs: Any, outputs: Any) -> Any:
    """Return the outputs unchanged."""
    del space, obs
    return outputs


class Network(nn.Module):
    """Network of an encoder, a recurrent core and a body; the parameters of the body lie at the top level.

    The network does not see the action mask. mask_fn(space, observations, outputs) returns the outputs with
    invalid actions masked. It also does not see the privileged state of a PrivilegedObs, except with
    `privileged`, as critics have it: it then sees only that state. If the encoder is a CNN and the state has
    no image, the state is flattened instead.
    """

    space: Space | None
    body: nn.Module
    encoder: Encoder = Flat()
    core: Core = Feedforward()
    mask_fn: Callable[[Space, Any, Any], Any] = ignore_action_mask
    privileged: bool = False

    def setup(self) -> None:
        """Share the scope with the body, so that its parameters have the same names as without this network."""
        nn.share_scope(self, self.body)

    def __call__(self, obs: Any, *args: Any) -> Any:
        """Return the outputs of the body for a batch of observations, without recurrent state.

        Further arguments are passed to the body.
        """
        return self.step(None, obs, *args)[1]

    def step(self, memory: Memory, obs: Any, *args: Any) -> tuple[Memory, Any]:
        """Return the memory after one observation and the outputs of the body; all leaves are [*batch, ...]."""
        memory, x = self.core.step(memory, self.encode(obs))
        return memory, self.head(obs, x, *args)

    def sequence(self, memory: Memory, obs: Any, ended: Bool[Array, "steps ..."], *args: Any) -> tuple[Memory, Any]:
        """Return the memory after each observation, before any reset, and the outputs, leaves [steps, *batch, ...].

        The sequence starts from `memory`, leaves [*batch, ...].
        """
        memories, x = self.core.sequence(memory, self.encode(obs), ended)
        return memories, self.head(obs, x, *args)

    def encode(self, obs: Any) -> Array:
        """Return the features of observations, shape [*batch, n]."""
        require_space(self.space, "observation_space")
        assert self.space is not None
        if self.privileged:
            space, obs = get_value_space(self.space), get_value_obs(self.space, obs)
            lacks_image = isinstance(self.encoder, CNN) and not has_image(space)
            return features(space, obs) if lacks_image else self.encoder(space, obs)
        return self.encoder(get_visible_space(self.space), get_visible_obs(self.space, obs))

    def head(self, obs: Any, x: Array, *args: Any) -> Any:
        """Return the outputs of the body for features x, with invalid actions masked according to the observations."""
        assert self.space is not None
        return self.mask_fn(self.space, obs, self.body(x, *args))

    def encode_batch(self, batch: Transition, memory: Memory) -> tuple[Array, Array]:
        """Return the core outputs for the observations of the training steps and for their successors.

        The batch is rows, or sequences with leaves [steps, *batch, ...] that start from `memory`, leaves
        [*batch, ...]. Burn-in steps only warm up the memory, without gradient.
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

    def outputs_and_next(self, batch: Transition, memory: Memory, *args: Any) -> tuple[Any, Any]:
        """Return the outputs of the body for the observations of the training steps and for their successors."""
        x, following = self.encode_batch(batch, memory)
        t = batch.training_steps
        return self.head(t.obs, x, *args), self.head(t.next_obs, following, *args)

    def outputs(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """Return the outputs of the body for the observations of the training steps."""
        return self.head(batch.training_steps.obs, self.encode_batch(batch, memory)[0], *args)

    def next_outputs(self, batch: Transition, memory: Memory, *args: Any) -> Any:
        """Return the outputs for the successors of the training steps, with the memory after those steps."""
        return self.head(batch.training_steps.next_obs, self.encode_batch(batch, memory)[1], *args)

    @nn.nowrap
    def initial_memories(self, batch: Transition) -> Memory:
        """Return the initial memory for each of a batch of sequences, leaves [batch, ...]."""
        return tree.broadcast(self.core.initial_memory(), *batch.is_done.shape[1:])

    @nn.nowrap
    def init_params(self, key: Key, *args: Any) -> Params:
        """Initialize the parameters; `args` are examples of the body's further inputs."""
        require_key(key)
        assert self.space is not None
        return self.init(
            key, self.core.initial_memory(), tree.zeros_like(to_shape_structs(self.space)), *args, method="step"
        )
