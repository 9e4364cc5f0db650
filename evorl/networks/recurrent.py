"""Gated recurrent cores: GRU and LSTM."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evorl.errors import require_int
from evorl.networks.mlp import Dense
from evorl.part_docs import complete_docstring
from evorl.types import Key, Memory

Cell = Callable[[Array, Array, Memory], Memory]  # (inputs times kernel, hidden state times kernel, memory)


def lstm(x: Float[Array, "*batch gates"], h: Float[Array, "*batch gates"], memory: Memory) -> Memory:
    """Return the hidden state and the cell state after a step; the gates are input, forget, cell and output.

    `x` and `h` are the inputs and the hidden state, each times its kernel.
    """
    take, keep, new, give = jnp.split(x + h, 4, axis=-1)
    cell = nn.sigmoid(keep) * memory[1] + nn.sigmoid(take) * jnp.tanh(new)
    return nn.sigmoid(give) * jnp.tanh(cell), cell


def gru(x: Float[Array, "*batch gates"], h: Float[Array, "*batch gates"], memory: Memory) -> Memory:
    """Return the hidden state after a step; the gates are reset, update and new.

    The reset gate is applied to the new gate's part of `h`, after the product with the kernel.
    """
    (reset, update, new), (of_reset, of_update, of_new) = jnp.split(x, 3, axis=-1), jnp.split(h, 3, axis=-1)
    keep = nn.sigmoid(update + of_update)
    return (keep * memory[0] + (1 - keep) * jnp.tanh(new + nn.sigmoid(reset + of_reset) * of_new),)


def reset_memory(memory: Memory, ended: Bool[Array, "..."]) -> Memory:
    """Set the memory, leaves [*batch, n], to zero in the rows whose episode ended."""
    return jax.tree.map(lambda x: jnp.where(ended[..., None], 0, x), memory)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def unroll_cell(
    cell: Cell,
    weights: tuple[Any, Float[Array, " gates"]],
    memory: Memory,
    x: Float[Array, "steps *batch gates"],
    ended: Bool[Array, "steps ..."],
) -> Memory:
    """Return the memory after each step, before any reset, leaves [steps, *batch, n]; weights are (kernel, bias).

    The gradient of the kernel is one product over all steps. The gradient of a plain scan would be a sum of
    one product for each step.
    """
    return _forward(cell, weights, memory, x, ended)[0]


def _forward(cell: Cell, weights: Any, memory: Memory, x: Array, ended: Array) -> tuple[Memory, Any]:
    kernel, bias = weights

    def step(memory: Memory, now: tuple[Array, Array]) -> tuple[Memory, tuple[Memory, Array]]:
        x, ended = now
        h = memory[0] @ kernel + bias
        after = cell(x, h, memory)
        return reset_memory(after, ended), (after, h)

    _, (memories, h) = jax.lax.scan(step, memory, (x, ended))
    return memories, (kernel, memory, memories, x, h, ended)


def _backward(cell: Cell, seen: Any, slopes: Memory) -> tuple[Any, Memory, Array, None]:
    kernel, memory, memories, x, h, ended = seen
    before = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], rest[:-1]]),
        memory,
        reset_memory(memories, ended),
    )

    def step(slope: Memory, now: Any) -> tuple[Memory, tuple[Array, Array]]:
        x, h, before, ended, own = now
        slope = jax.tree.map(jnp.add, own, reset_memory(slope, ended))
        of_x, of_h, of_memory = jax.vjp(cell, x, h, before)[1](slope)
        return (of_memory[0] + of_h @ kernel.T, *of_memory[1:]), (of_x, of_h)

    nothing = jax.tree.map(jnp.zeros_like, memory)
    slope, (of_x, of_h) = jax.lax.scan(step, nothing, (x, h, before, ended, slopes), reverse=True)
    rows = lambda x: x.reshape(-1, x.shape[-1])  # noqa: E731
    return (rows(before[0]).T @ rows(of_h), rows(of_h).sum(0)), slope, of_x, None


unroll_cell.defvjp(_forward, _backward)


def _orthogonal_init(key: Key, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
    """Draw k orthogonal matrices and concatenate them to the shape [n, k n].

    On a CPU, the members of a vmapped batch are factorized sequentially. Batched LAPACK calls that run
    concurrently block all threads of XLA's pool while they wait for other threads of it, and never finish
    (jaxlib 0.10.2 on two cores).
    """

    def draw(key: Key) -> Array:
        return nn.initializers.orthogonal()(key, (shape[0], shape[0]), dtype)

    one = partial(jax.lax.platform_dependent, cpu=jax.custom_batching.sequential_vmap(draw), default=draw)
    return jnp.concatenate([one(key) for key in jax.random.split(key, shape[1] // shape[0])], axis=1)


class Recurrent(nn.Module):
    """Base class of recurrent cores; the output is the hidden state.

    All gates are concatenated in two kernels, one for the inputs and one for the hidden state.

    Args:
        width: Size of the hidden state.
    """

    width: int = 128

    cell: ClassVar[Any]  # a Cell
    gates: ClassVar[int]  # number of gates
    parts: ClassVar[int]  # number of arrays in the memory, each [width]

    def __post_init__(self) -> None:
        require_int("width", self.width)
        super().__post_init__()

    def setup(self) -> None:
        """Create one kernel for all gates of the inputs and one for all gates of the hidden state."""
        gates = self.gates * self.width
        self.input = Dense(gates, nn.initializers.lecun_normal())
        self.kernel = self.param("kernel", _orthogonal_init, (self.width, gates))
        self.bias = self.param("bias", nn.initializers.zeros, (gates,))

    @nn.nowrap
    def initial_memory(self) -> Memory:
        return tuple(jnp.zeros(self.width) for _ in range(self.parts))

    def step(self, memory: Memory, x: Float[Array, "*batch n"]) -> tuple[Memory, Float[Array, "*batch width"]]:
        memory = type(self).cell(self.input(x), memory[0] @ self.kernel + self.bias, memory)
        return memory, memory[0]

    def sequence(
        self, memory: Memory, x: Float[Array, "steps *batch n"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Memory, Float[Array, "steps *batch width"]]:
        memories: Any = unroll_cell(type(self).cell, (self.kernel, self.bias), memory, self.input(x), ended)
        return memories, memories[0]


@complete_docstring
class GRU(Recurrent):
    """Gated recurrent unit (GRU) core.

    Source: Cho et al. 2014, arXiv:1406.1078.
    """

    cell, gates, parts = staticmethod(gru), 3, 1


@complete_docstring
class LSTM(Recurrent):
    """Long short-term memory (LSTM) core.

    Source: Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735.
    """

    cell, gates, parts = staticmethod(lstm), 4, 2
