"""Kernels with a low-rank perturbation of a shared kernel, in floating point or in 8-bit integers."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Int8

DTYPES = ("float32", "bfloat16", "int8")
BITS = 7  # bits of an integer without its sign


@struct.dataclass
class QuantizedArray:
    """Array of 8-bit integers times 2^exponent; the exponent is a scalar or has the axes of the numbers."""

    numbers: Int8[Array, "*shape"]
    exponent: Int[Array, "*axes"]

    @property
    def T(self) -> "QuantizedArray":  # noqa: N802  named as in arrays
        """Return the transpose of a matrix that has one exponent."""
        return QuantizedArray(self.numbers.T, self.exponent)


@struct.dataclass
class LowRankKernel:
    """Kernel shared + left^T right, which supports x @ kernel without computing the sum.

    Its parts are arrays or QuantizedArrays. All vmapped members may have the same `shared`.

    Source: Sarkar et al. 2025, arXiv:2511.16652.
    """

    shared: Float[Array, "inputs outputs"] | QuantizedArray
    left: Float[Array, "rank inputs"] | QuantizedArray
    right: Float[Array, "rank outputs"] | QuantizedArray

    def __rmatmul__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return apply_kernel(jnp.matmul, x, self)


def apply_kernel(linear: Callable[..., Array], x: Array, kernel: Any, axes: int = 1) -> Array:
    """Apply linear(x, kernel), also for a LowRankKernel; x has `axes` trailing axes that are not batch axes.

    Like jnp.matmul, `linear` takes a matrix [inputs, outputs] and preferred_element_type.
    """
    if not isinstance(kernel, LowRankKernel):
        return linear(x, kernel)
    low = apply_in_dtype(linear, x, kernel.left.T, axes)
    return apply_in_dtype(linear, x, kernel.shared, axes) + apply_in_dtype(jnp.matmul, low, kernel.right, axes)


def apply_in_dtype(linear: Callable[..., Array], x: Float[Array, "..."], kernel: Any, axes: int) -> Float[Array, "..."]:
    """Apply linear(x, kernel) in the kernel's dtype, with sums in x's dtype, or exactly in int32 for integers."""
    if not isinstance(kernel, QuantizedArray):
        if kernel.dtype == x.dtype:
            return linear(x, kernel)
        return linear(x.astype(kernel.dtype), kernel, preferred_element_type=x.dtype)
    whole = quantize(x, tuple(range(-axes, 0)))
    sums = linear(whole.numbers, kernel.numbers, preferred_element_type=jnp.int32)
    return jnp.ldexp(sums.astype(x.dtype), whole.exponent + kernel.exponent)


def quantize(x: Float[Array, "..."], axes: tuple[int, ...] | None = None) -> QuantizedArray:
    """Round x to 8-bit integers times a power of two: the smallest one that keeps all values below 128.

    Values that would round to 128 become 127. There is one power for all of x, or one for each slice along
    `axes`.
    """
    largest = jnp.abs(x).max(axes, keepdims=axes is not None)
    exponent = jnp.frexp(largest)[1] - BITS
    whole = jnp.round(jnp.ldexp(x, -exponent))
    most = 2**BITS - 1
    return QuantizedArray(jnp.clip(whole, -most, most).astype(jnp.int8), exponent)


def cast_to_dtype(x: Float[Array, "..."], dtype: str) -> Any:
    """Convert a matrix to one of DTYPES, as its products need it."""
    return quantize(x) if dtype == "int8" else x.astype(dtype)
