"""Reader for policies exported with `python -m evorl.export RUN policy.npz`, in NumPy alone.

Copy this file to where the policy runs. It needs neither evorl nor JAX.

    policy = load("policy.npz")
    action = policy(obs)

A policy file contains arrays and a list of operations by name, in JSON. No code is executed from it.
"""

import json
import os
from typing import Any

import numpy as np


def _gather(x: Any, index: Any, axis: int) -> Any:
    return np.take(x, np.clip(index[..., 0], 0, x.shape[axis] - 1), axis)


def _broadcast(x: Any, shape: list[int], axes: list[int]) -> Any:
    sizes = dict(zip(axes, np.shape(x), strict=True))
    return np.broadcast_to(np.reshape(x, [sizes.get(i, 1) for i in range(len(shape))]), shape)


def _iota(shape: list[int], dtype: str, axis: int) -> Any:
    return _broadcast(np.arange(shape[axis], dtype=dtype), shape, [axis])


def _slice(x: Any, start: list[int], end: list[int], step: list[int]) -> Any:
    return x[tuple(map(slice, start, end, step))]


OPERATIONS: dict[str, Any] = {  # by their names in jax.lax
    "abs": np.abs, "add": np.add, "and": np.bitwise_and, "ceil": np.ceil, "copy": np.copy, "cos": np.cos,
    "div": np.divide, "eq": np.equal, "exp": np.exp, "expm1": np.expm1, "floor": np.floor, "ge": np.greater_equal,
    "gt": np.greater, "is_finite": np.isfinite, "le": np.less_equal, "log": np.log, "log1p": np.log1p, "lt": np.less,
    "max": np.maximum, "min": np.minimum, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative,
    "not": np.invert, "or": np.bitwise_or, "pow": np.power, "rem": np.fmod, "round": np.round, "sign": np.sign,
    "sin": np.sin, "sqrt": np.sqrt, "square": np.square, "sub": np.subtract, "tanh": np.tanh, "xor": np.bitwise_xor,
    "complex": lambda real, imag: real + 1j * imag, "conj": np.conj, "imag": np.imag, "real": np.real,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, *cases: np.choose(np.asarray(which, int), cases),
    "integer_pow": lambda x, y: x**y,
    "convert_element_type": lambda x, dtype: np.asarray(x).astype(dtype),
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": np.reshape,
    "squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "transpose": np.transpose,
    "slice": _slice,
    "split": lambda x, at, axis: np.split(x, at, axis),
    "stack": lambda *parts, axis: np.stack(parts, axis),
    "concatenate": lambda *parts, axis: np.concatenate(parts, axis),
    "gather": _gather,
    "dot_general": lambda a, b, axes: np.tensordot(a, b, axes),
    "argmax": lambda x, axis, dtype: np.argmax(x, axis).astype(dtype),
    "argmin": lambda x, axis, dtype: np.argmin(x, axis).astype(dtype),
    "reduce_sum": lambda x, axes: np.sum(x, tuple(axes)), "reduce_max": lambda x, axes: np.max(x, tuple(axes)),
    "reduce_min": lambda x, axes: np.min(x, tuple(axes)), "reduce_prod": lambda x, axes: np.prod(x, tuple(axes)),
    "reduce_and": lambda x, axes: np.all(x, tuple(axes)), "reduce_or": lambda x, axes: np.any(x, tuple(axes)),
}  # fmt: skip


class NumpyPolicy:
    """Greedy policy for one observation, an array or a nested structure as in the observation space.

    A recurrent policy also takes and returns its recurrent state: `action, memory = policy(obs, memory)`,
    which starts at `policy.memory`.

    Attributes:
        memory: Recurrent state at the start of an episode, a list of arrays; empty without recurrent state.
    """

    def __init__(self, program: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._program, self._arrays = program, arrays
        self.memory = [arrays[name] for name in program["memory"]]

    def __call__(self, obs: Any, memory: list[np.ndarray] | None = None) -> Any:
        program, values = self._program, dict(self._arrays)
        for leaf in program["obs"]:
            part = obs
            for key in leaf["path"]:
                part = part[key]
            values[leaf["name"]] = np.asarray(part, leaf["dtype"]).reshape(leaf["shape"])
        values |= zip(program["memory_inputs"], self.memory if memory is None else memory, strict=True)
        with np.errstate(all="ignore"):
            for operation, inputs, outputs, options in program["operations"]:
                found = OPERATIONS[operation](*(values[name] for name in inputs), **options)
                values |= zip(outputs, found if isinstance(found, list) else [found], strict=True)
        action = _nest(program["action"], values)
        return (action, [values[name] for name in program["memory_outputs"]]) if self.memory else action


def _nest(names: Any, values: dict[str, np.ndarray]) -> Any:
    if isinstance(names, dict):
        return {key: _nest(name, values) for key, name in names.items()}
    return tuple(_nest(name, values) for name in names) if isinstance(names, list) else values[names]


def load(path: str | os.PathLike[str]) -> NumpyPolicy:
    """Read a policy from a file."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    return NumpyPolicy(json.loads(str(arrays.pop("program"))), arrays)
