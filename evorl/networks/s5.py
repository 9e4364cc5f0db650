"""S5, a recurrent core of linear state spaces that can process a sequence in parallel."""

import math
from functools import cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float

from evorl.errors import require, require_int, unknown_name_error
from evorl.networks.mlp import Dense
from evorl.types import Key, Memory

STEP_SIZE_RANGE = (1e-3, 1e-1)  # range of the initial step sizes
NORMS = ("post", "pre")


@cache
def hippo(states: int) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues [states / 2] and eigenvectors [states, states / 2] of the normal part of HiPPO-LegS.

    There is one of each conjugate pair (Gu et al. 2022, arXiv:2206.11893, section 4.1).
    """
    order = np.arange(states)
    root = np.sqrt(2 * order + 1)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(order + 1.0)
    normal = legs + np.outer(root, root) / 2
    frequencies, vectors = np.linalg.eigh(-1j * (normal + np.eye(states) / 2))  # normal + I / 2 is skew-symmetric
    upper = slice(states // 2, None)
    return -0.5 + 1j * frequencies[upper], vectors[:, upper]


class StateSpace(nn.Module):
    """Linear state space x' = Ax + Bu, y = 2 Re(Cx) + Du, with a block-wise initialized diagonal A.

    Each state has its own step size; the discretization holds the input constant during a step (Smith et al.
    2023, arXiv:2208.04933, section 3).
    """

    width: int
    states: int
    blocks: int
    associative: bool

    def setup(self) -> None:
        """Initialize the parameters with the HiPPO system, in the basis of its eigenvectors.

        Complex parameters are stored as two real arrays.
        """
        size, pairs, width = self.states // self.blocks, self.states // 2, self.width
        poles, vectors = hippo(size)
        lecun = nn.initializers.lecun_normal()

        def inputs(key: Key) -> Array:
            of_blocks = lecun(key, (width, self.states)).reshape(width, self.blocks, size)
            return _to_real_parts((of_blocks @ vectors.conj()).reshape(width, pairs))

        def outputs(key: Key) -> Array:
            of_blocks = lecun(key, (self.states, width)).reshape(self.blocks, size, width)
            return _to_real_parts((vectors.T @ of_blocks).reshape(pairs, width), 0)

        def log_steps(key: Key) -> Array:
            return jax.random.uniform(
                key, (pairs,), minval=math.log(STEP_SIZE_RANGE[0]), maxval=math.log(STEP_SIZE_RANGE[1])
            )

        self.poles = self.param("poles", lambda _: _to_real_parts(jnp.tile(jnp.asarray(poles), self.blocks)))
        self.log_step = self.param("log_step", log_steps)
        self.inputs = self.param("inputs", inputs)
        self.outputs = self.param("outputs", outputs)
        self.skip = self.param("skip", nn.initializers.normal(1.0), (width,))

    def discretize(
        self, u: Float[Array, "*batch width"]
    ) -> tuple[Complex[Array, " pairs"], Complex[Array, "*batch pairs"]]:
        """Return the factor by which the state is multiplied in a step, and the additive term of the inputs."""
        poles = _to_complex(self.poles)
        decay = jnp.exp(poles * jnp.exp(self.log_step))
        return decay, (decay - 1) / poles * _to_complex(u @ self.inputs)

    def compute_output(
        self, states: Float[Array, "*batch parts"], u: Float[Array, "*batch width"]
    ) -> Float[Array, "*batch width"]:
        """Return the output of the states after the inputs u."""
        real, imaginary = jnp.split(self.outputs, 2)
        return 2 * states @ jnp.concatenate([real, -imaginary]) + self.skip * u

    def step(self, state: Array, u: Float[Array, "*batch width"]) -> tuple[Array, Float[Array, "*batch width"]]:
        decay, new = self.discretize(u)
        state = _to_real_parts(decay * _to_complex(state) + new)
        return state, self.compute_output(state, u)

    def sequence(
        self, state: Array, u: Float[Array, "steps *batch width"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Array, Float[Array, "steps *batch width"]]:
        decay, new = self.discretize(u)
        begins = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
        decays = jnp.where(begins[..., None], 0, decay)
        if self.associative:
            new = new.at[0].add(decays[0] * _to_complex(state))
            states = jax.lax.associative_scan(lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1]), (decays, new))[1]
        else:
            advance = lambda x, now: (now[0] * x + now[1],) * 2  # noqa: E731
            states = jax.lax.scan(advance, _to_complex(state), (decays, new))[1]
        states = _to_real_parts(states)
        return states, self.compute_output(states, u)


def _to_real_parts(x: Any, axis: int = -1) -> Array:
    """Concatenate the real and the imaginary parts of complex numbers."""
    return jnp.concatenate([x.real, x.imag], axis, dtype=jnp.float32)


def _to_complex(parts: Array) -> Array:
    return jax.lax.complex(*jnp.split(parts, 2, axis=-1))


class Layer(nn.Module):
    """S5 layer: state space, GELU, a gate computed from the GELU output, and a residual, with pre- or post-norm."""

    space: StateSpace
    norm: str

    @nn.compact
    def __call__(
        self, method: str, state: Array, x: Float[Array, "*batch width"], *ended: Array
    ) -> tuple[Array, Array]:
        """Return the states after `method` of the state space ("step" or "sequence"), and the outputs."""
        states, y = getattr(self.space, method)(state, nn.LayerNorm()(x) if self.norm == "pre" else x, *ended)
        y = nn.gelu(y)
        x = x + y * nn.sigmoid(Dense(self.space.width)(y))
        return states, nn.LayerNorm()(x) if self.norm == "post" else x


class S5(nn.Module):
    """S5 core: a linear layer followed by layers of linear state spaces.

    A sequence is processed step by step, or by an associative scan, whose depth is the logarithm of the
    length.

    Args:
        width: Size of the inputs and outputs of the layers.
        layers: Number of layers.
        states: Number of states of each layer, a multiple of twice the blocks.
        blocks: Number of blocks of A, each initialized by HiPPO.
        norm: Position of the layer normalization in a layer: "post" or "pre".
        associative: Whether to process sequences by an associative scan; None for step by step on a CPU and
            the associative scan elsewhere.

    Raises:
        OptionError: If an option is invalid.

    Source: Smith et al. 2023, arXiv:2208.04933; resets: Lu et al. 2023, arXiv:2303.03982.
    """

    width: int = 256
    layers: int = 2
    states: int = 256
    blocks: int = 2
    norm: str = NORMS[0]
    associative: bool | None = None

    def __post_init__(self) -> None:
        for name in ("width", "layers", "states", "blocks"):
            require_int(name, getattr(self, name))
        whole = self.states % (2 * self.blocks) == 0
        require(whole, "states", self.states, f"must be a multiple of 2 * blocks, {2 * self.blocks}")
        if self.norm not in NORMS:
            raise unknown_name_error("norm", self.norm, NORMS)
        super().__post_init__()

    def setup(self) -> None:
        """Create the linear layer and the state space layers."""
        at_once = jax.default_backend() != "cpu" if self.associative is None else self.associative
        spaces = [StateSpace(self.width, self.states, self.blocks, at_once) for _ in range(self.layers)]
        self.encode, self.stack = Dense(self.width), [Layer(space, self.norm) for space in spaces]

    @nn.nowrap
    def initial_memory(self) -> Memory:
        return tuple(jnp.zeros(self.states) for _ in range(self.layers))

    def step(self, memory: Memory, x: Float[Array, "*batch n"]) -> tuple[Memory, Float[Array, "*batch width"]]:
        return self._apply_layers("step", memory, x)

    def sequence(
        self, memory: Memory, x: Float[Array, "steps *batch n"], ended: Bool[Array, "steps ..."]
    ) -> tuple[Memory, Float[Array, "steps *batch width"]]:
        """Process a sequence with all layers, step by step or by an associative scan."""
        return self._apply_layers("sequence", memory, x, ended)

    def _apply_layers(self, method: str, memory: Memory, x: Array, *ended: Array) -> tuple[Memory, Array]:
        x, after = self.encode(x), []
        for layer, state in zip(self.stack, memory, strict=True):
            state, x = layer(method, state, x, *ended)
            after.append(state)
        return tuple(after), x
