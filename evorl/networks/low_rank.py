"""Kernels that differ from a shared one by a product of low rank, in floating point or in whole numbers of 8 bits."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Int8

DTYPES = ("float32", "bfloat16", "int8")
BITS = 7  # of a whole number, besides its sign


@struct.dataclass
class QuantizedArray:
    """numbers 2^exponent; the exponent has the axes of the numbers, or is one for all."""

    numbers: Int8[Array, "*shape"]
    exponent: Int[Array, "*axes"]

    @property
    def T(self) -> "QuantizedArray":  # noqa: N802  as of an array
        """A matrix with one exponent, transposed."""
        return QuantizedArray(self.numbers.T, self.exponent)


@struct.dataclass
class LowRankKernel:
    """The kernel shared + left^T right, which is not made: it answers x @ kernel.

    Source: Sarkar et al. 2025, arXiv:2511.16652. Its parts are arrays, or QuantizedArray. `shared` may be one for all
    of vmapped members.
    """

    shared: Float[Array, "inputs outputs"] | QuantizedArray
    left: Float[Array, "rank inputs"] | QuantizedArray
    right: Float[Array, "rank outputs"] | QuantizedArray

    def __rmatmul__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return apply_kernel(jnp.matmul, x, self)


def apply_kernel(linear: Callable[..., Array], x: Array, kernel: Any, axes: int = 1) -> Array:
    """linear(x, kernel), where a kernel may be LowRankKernel; x has so many axes beside those of a batch.

    linear takes a matrix [inputs, anything] and preferred_element_type, as jnp.matmul does.
    """
    if not isinstance(kernel, LowRankKernel):
        return linear(x, kernel)
    low = apply_in_dtype(linear, x, kernel.left.T, axes)
    return apply_in_dtype(linear, x, kernel.shared, axes) + apply_in_dtype(jnp.matmul, low, kernel.right, axes)


def apply_in_dtype(linear: Callable[..., Array], x: Float[Array, "..."], kernel: Any, axes: int) -> Float[Array, "..."]:
    """linear(x, kernel) in the kernel's numbers, summed in float32, or of whole ones exactly in int32."""
    if not isinstance(kernel, QuantizedArray):
        if kernel.dtype == x.dtype:
            return linear(x, kernel)
        return linear(x.astype(kernel.dtype), kernel, preferred_element_type=x.dtype)
    whole = quantize(x, tuple(range(-axes, 0)))
    sums = linear(whole.numbers, kernel.numbers, preferred_element_type=jnp.int32)
    return jnp.ldexp(sums.astype(x.dtype), whole.exponent + kernel.exponent)


def quantize(x: Float[Array, "..."], axes: tuple[int, ...] | None = None) -> QuantizedArray:
    """x rounded to multiples of the least power of two by which nothing exceeds 127, but for what rounds to 128.

    The power is one for all of x, or for what lies along the axes.
    """
    largest = jnp.abs(x).max(axes, keepdims=axes is not None)
    exponent = jnp.frexp(largest)[1] - BITS
    whole = jnp.round(jnp.ldexp(x, -exponent))
    most = 2**BITS - 1
    return QuantizedArray(jnp.clip(whole, -most, most).astype(jnp.int8), exponent)


def cast_to_dtype(x: Float[Array, "..."], dtype: str) -> Any:
    """A matrix as products in this dtype take it, one of DTYPES."""
    return quantize(x) if dtype == "int8" else x.astype(dtype)
