"""Traced policies as lists of NumPy operations, for `evorl.training.export`."""

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evorl.errors import OptionError
from evorl.numpy_policy import OPERATIONS

CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # parameters of CALLS that hold the called function


class Operation(NamedTuple):
    """One operation of an exported policy; its inputs and outputs are names of values."""

    name: str
    inputs: list[str]
    outputs: list[str]
    options: dict[str, Any]


class FlatProgram:
    """A traced function as a list of operations, with inlined calls and folded constants.

    Operations whose results are not used are dropped.
    """

    def __init__(self, closed: Any) -> None:
        self.count = 0
        self.arrays: dict[str, np.ndarray] = {}
        self.found: list[tuple[Any, list[str], list[str]]] = []  # equations with the names of inputs and outputs
        self.inputs = [self._new_name() for _ in closed.jaxpr.invars]
        self.outputs = self._inline(closed.jaxpr, closed.consts, self.inputs)
        needed, kept = set(self.outputs), []
        for equation, inputs, outputs in reversed(self.found):
            if needed & set(outputs):
                needed |= set(inputs)
                kept.append((equation, inputs, outputs))
        unknown = sorted({str(equation.primitive) for equation, *_ in kept} - OPERATIONS.keys())
        if unknown:
            raise OptionError(f"out: .npz does not support {', '.join(unknown)}")
        self.operations = [
            Operation(str(equation.primitive), inputs, outputs, _to_options(equation))
            for equation, inputs, outputs in reversed(kept)
        ]
        self.arrays = {name: x for name, x in self.arrays.items() if name in needed}

    def _compute(self, equation: Any, inputs: list[str]) -> list[str]:
        """Return the names of the outputs of an equation, and compute it now if all its inputs are constants."""
        name, known = str(equation.primitive), [self.arrays[one] for one in inputs if one in self.arrays]
        if name == "select_n" and len(set(self.arrays.get(inputs[0], np.zeros(0)).ravel().tolist())) == 1:
            return [inputs[1 + int(self.arrays[inputs[0]].flat[0])]]
        if name in OPERATIONS and len(known) == len(inputs):
            with contextlib.suppress(OptionError):  # the result may be unused, so it is no error yet
                values = OPERATIONS[name](*known, **_to_options(equation))
                return [self._keep(value) for value in (values if isinstance(values, list) else [values])]
        outputs = [self._new_name() for _ in equation.outvars]
        inputs = [] if name == "random_bits" else inputs  # the reader draws its own numbers, without a key
        self.found.append((equation, inputs, outputs))
        return outputs

    def _inline(self, jaxpr: Any, consts: Any, inputs: list[str]) -> list[str]:
        """Collect the equations of a function that is called with `inputs`, and return the names of its outputs."""
        names = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(x: Any) -> str:
            return self._keep(np.asarray(x.val, x.aval.dtype)) if hasattr(x, "val") else names[x]

        for var, value in zip(jaxpr.constvars, consts, strict=True):
            names[var] = self._keep(value)
        for equation in jaxpr.eqns:
            given = [read(x) for x in equation.invars]
            if str(equation.primitive) in CALLS:
                inner = next(equation.params[name] for name in INNER if name in equation.params)
                called = self._inline(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
            else:
                called = self._compute(equation, given)
            names |= zip(equation.outvars, called, strict=True)
        return [read(x) for x in jaxpr.outvars]

    def _new_name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _keep(self, value: Any) -> str:
        name = self._new_name()
        if not jnp.issubdtype(value.dtype, jax.dtypes.extended):  # a random key, which a greedy policy does not use
            self.arrays[name] = np.asarray(value)
        return name


def _to_options(equation: Any) -> dict[str, Any]:
    """Return the options of the NumPy operation for an equation."""
    given, name = equation.params, str(equation.primitive)
    match name:
        case "integer_pow":
            return {"y": int(given["y"])}
        case "convert_element_type":
            return {"dtype": str(np.dtype(given["new_dtype"]))}
        case "random_bits":
            _require_simple(given["bit_width"] == 32, "random numbers of this width")
            return {"shape": _ints(given["shape"])}
        case "bitcast_convert_type":
            same = np.dtype(given["new_dtype"]).itemsize == equation.invars[0].aval.dtype.itemsize
            _require_simple(same, "this kind of cast")
            return {"dtype": str(np.dtype(given["new_dtype"]))}
        case "shift_right_logical":
            _require_simple(
                np.issubdtype(equation.invars[0].aval.dtype, np.unsignedinteger), "shifts of signed numbers"
            )
        case "cumsum":
            _require_simple(not given["reverse"], "a reversed sum")
            return {"axis": int(given["axis"])}
        case "iota":
            dtype, axis = str(np.dtype(given["dtype"])), int(given["dimension"])
            return {"shape": _ints(given["shape"]), "dtype": dtype, "axis": axis}
        case "stack":
            return {"axis": int(given["axis"])}
        case "broadcast_in_dim":
            return {"shape": _ints(given["shape"]), "axes": _ints(given["broadcast_dimensions"])}
        case "reshape":
            return {"shape": _ints(given["new_sizes"])}
        case "squeeze":
            return {"axes": _ints(given["dimensions"])}
        case "transpose":
            return {"axes": _ints(given["permutation"])}
        case "slice":
            step = given["strides"] or [1] * len(given["start_indices"])
            return {"start": _ints(given["start_indices"]), "end": _ints(given["limit_indices"]), "step": _ints(step)}
        case "split":
            return {"at": _ints(np.cumsum(given["sizes"])[:-1]), "axis": int(given["axis"])}
        case "concatenate":
            return {"axis": int(given["dimension"])}
        case "argmax" | "argmin":
            return {"axis": int(given["axes"][0]), "dtype": str(np.dtype(given["index_dtype"]))}
        case "dot_general":
            contracted, batched = given["dimension_numbers"]
            _require_simple(not any(batched), "batched matrix products")
            return {"axes": [_ints(axes) for axes in contracted]}
        case "gather":
            x, numbers = equation.invars[0].aval, given["dimension_numbers"]
            along, given_axes = _ints(numbers.start_index_map), equation.invars[1].aval.ndim - 1
            sizes = [1 if i in along else n for i, n in enumerate(x.shape)]
            plain = along == _ints(numbers.collapsed_slice_dims) and _ints(given["slice_sizes"]) == sizes
            _require_simple(len(along) == 1 and plain, "this kind of indexing")
            others = [i for i in range(x.ndim - 1 + given_axes) if not along[0] <= i < along[0] + given_axes]
            _require_simple(_ints(numbers.offset_dims) == others, "this kind of indexing")
            return {"axis": along[0]}
        case "div":
            _require_simple(np.issubdtype(equation.invars[0].aval.dtype, np.inexact), "integer division")
        case "round":
            to_even = given["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
            _require_simple(to_even, "this rounding mode")
    return {"axes": _ints(given["axes"])} if name.startswith("reduce_") else {}


def _ints(numbers: Iterable[Any]) -> list[int]:
    return [int(number) for number in numbers]


def _require_simple(simple: Any, what: str) -> None:
    if not simple:
        raise OptionError(f"out: .npz does not support {what}")
