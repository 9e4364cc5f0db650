"""Reader for policies exported with `python -m evorl.export RUN policy.npz`, in NumPy alone.

Copy this file to where the policy runs. It needs neither evorl nor JAX.

    policy = load("policy.npz")
    action = policy(obs)

A policy file contains arrays and a list of operations by name, in JSON. No code is executed from it.
"""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

SCHEMA = 2  # version of the file format; a file without a number has version 1
MAX_BYTES = 256 * 10**6  # of the arrays in a file
NUMERIC_KINDS = "biufc"  # of the dtypes of arrays
MAX_SIZE = 10**8  # elements of a value
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError, OverflowError)
UNREADABLE += (RecursionError, NotImplementedError, zipfile.BadZipFile, zlib.error)
LEAF = {"path": list, "name": str, "dtype": str, "shape": list}
PARTS = {"obs": list, "memory": list, "memory_inputs": list, "memory_outputs": list, "operations": list}


def make_operations(xp: Any, draw_bits: Callable[[list[int]], Any]) -> dict[str, Any]:
    """Return the operations of policies by their names in jax.lax.

    Args:
        xp: numpy or jax.numpy.
        draw_bits: Function from a shape to random numbers of type uint32.

    Returns:
        Functions of arrays and options.
    """

    def gather(x: Any, index: Any, axis: int) -> Any:
        return xp.take(x, xp.clip(index[..., 0], 0, x.shape[axis] - 1), axis)

    def broadcast(x: Any, shape: list[int], axes: list[int]) -> Any:
        sizes = dict(zip(axes, xp.shape(x), strict=True))
        return xp.broadcast_to(xp.reshape(x, [sizes.get(i, 1) for i in range(len(shape))]), shape)

    def iota(shape: list[int], dtype: str, axis: int) -> Any:
        return broadcast(xp.arange(shape[axis], dtype=dtype), shape, [axis])

    def cut(x: Any, start: list[int], end: list[int], step: list[int]) -> Any:
        return x[tuple(map(slice, start, end, step))]

    return {
        "abs": xp.abs, "add": xp.add, "and": xp.bitwise_and, "ceil": xp.ceil, "copy": xp.copy, "cos": xp.cos,
        "div": xp.divide, "eq": xp.equal, "exp": xp.exp, "expm1": xp.expm1, "floor": xp.floor,
        "ge": xp.greater_equal, "gt": xp.greater, "is_finite": xp.isfinite, "le": xp.less_equal, "log": xp.log,
        "log1p": xp.log1p, "lt": xp.less, "max": xp.maximum, "min": xp.minimum, "mul": xp.multiply,
        "ne": xp.not_equal, "neg": xp.negative, "not": xp.invert, "or": xp.bitwise_or, "pow": xp.power,
        "rem": xp.fmod, "round": xp.round, "sign": xp.sign, "sin": xp.sin, "sqrt": xp.sqrt, "square": xp.square,
        "sub": xp.subtract, "tanh": xp.tanh, "xor": xp.bitwise_xor,
        "complex": lambda real, imag: real + 1j * imag, "conj": xp.conj, "imag": xp.imag, "real": xp.real,
        "clamp": lambda low, x, high: xp.minimum(xp.maximum(x, low), high),
        "logistic": lambda x: 1 / (1 + xp.exp(-x)),
        "rsqrt": lambda x: 1 / xp.sqrt(x),
        "select_n": lambda which, *cases: xp.choose(xp.asarray(which, int), cases, mode="clip"),
        "integer_pow": lambda x, y: x**y,
        "convert_element_type": lambda x, dtype: xp.asarray(x).astype(dtype),
        "bitcast_convert_type": lambda x, dtype: xp.asarray(x).view(dtype),
        "shift_right_logical": xp.right_shift,
        "random_bits": draw_bits,
        "iota": iota,
        "broadcast_in_dim": broadcast,
        "reshape": lambda x, shape: xp.reshape(x, shape),  # by position, for NumPy before 2.1
        "squeeze": lambda x, axes: xp.squeeze(x, tuple(axes)),
        "transpose": xp.transpose,
        "slice": cut,
        "split": lambda x, at, axis: xp.split(x, at, axis),
        "stack": lambda *parts, axis: xp.stack(parts, axis),
        "concatenate": lambda *parts, axis: xp.concatenate(parts, axis),
        "gather": gather,
        "dot_general": lambda a, b, axes: xp.tensordot(a, b, axes),
        "cumsum": lambda x, axis: xp.cumsum(x, axis),
        "argmax": lambda x, axis, dtype: xp.argmax(x, axis).astype(dtype),
        "argmin": lambda x, axis, dtype: xp.argmin(x, axis).astype(dtype),
        "reduce_sum": lambda x, axes: xp.sum(x, tuple(axes)), "reduce_max": lambda x, axes: xp.max(x, tuple(axes)),
        "reduce_min": lambda x, axes: xp.min(x, tuple(axes)), "reduce_prod": lambda x, axes: xp.prod(x, tuple(axes)),
        "reduce_and": lambda x, axes: xp.all(x, tuple(axes)), "reduce_or": lambda x, axes: xp.any(x, tuple(axes)),
    }  # fmt: skip


OPERATIONS = make_operations(np, lambda shape: np.zeros(shape, np.uint32))


def run_program(program: dict[str, Any], arrays: dict[str, Any], obs: Any, memory: Any, operations: Any) -> Any:
    """Run the operations of a policy.

    Args:
        program: Program of a policy file.
        arrays: Parameters by name.
        obs: Observation, an array or a nested structure as in the observation space.
        memory: Recurrent state, a list of arrays.
        operations: Table of `make_operations`.

    Returns:
        The action, and the next recurrent state.
    """
    values = dict(arrays)
    for leaf in program["obs"]:
        part = obs
        for key in leaf["path"]:
            part = part[key]
        values[leaf["name"]] = part.astype(leaf["dtype"]).reshape(leaf["shape"])
    values |= zip(program["memory_inputs"], memory, strict=True)
    for operation, inputs, outputs, options in program["operations"]:
        found = operations[operation](*(values[name] for name in inputs), **options)
        values |= zip(outputs, found if isinstance(found, list) else [found], strict=True)
    return _nest(program["action"], values), [values[name] for name in program["memory_outputs"]]


def _nest(names: Any, values: dict[str, Any]) -> Any:
    if isinstance(names, dict):
        return {key: _nest(name, values) for key, name in names.items()}
    return tuple(_nest(name, values) for name in names) if isinstance(names, list) else values[names]


class NumpyPolicy:
    """Policy for one observation, an array or a nested structure as in the observation space.

    A recurrent policy also takes and returns its recurrent state: `action, memory = policy(obs, memory)`,
    which starts at `policy.memory`.

    Attributes:
        memory: Recurrent state at the start of an episode, a list of arrays; empty without recurrent state.
    """

    def __init__(self, program: dict[str, Any], arrays: dict[str, np.ndarray], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        draw_bits = lambda shape: rng.integers(0, 2**32, shape, np.uint32)  # noqa: E731
        self._program, self._arrays, self._operations = program, arrays, make_operations(np, draw_bits)
        self.memory = [arrays[name] for name in program["memory"]]

    def __call__(self, obs: Any, memory: list[np.ndarray] | None = None) -> Any:
        memory = self.memory if memory is None else memory
        with np.errstate(all="ignore"):
            action, after = run_program(self._program, self._arrays, _to_arrays(obs), memory, self._operations)
        return (action, after) if self.memory else action


def _to_arrays(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _to_arrays(part) for key, part in obs.items()}
    return tuple(map(_to_arrays, obs)) if isinstance(obs, tuple) else np.asarray(obs)


def load(path: str | os.PathLike[str], solution: int = 0, seed: int = 0) -> NumpyPolicy:
    """Read a policy from a file.

    Args:
        path: The file.
        solution: Number of a solution, for a file with those of a Pareto front or an archive.
        seed: Seed of the actions of a policy that samples them.

    Returns:
        The policy.

    Raises:
        ValueError: The file is not a policy that this version can read, or has no such solution.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        program, arrays, _ = read_policy(file, str(path))
    return NumpyPolicy(program, select_solution(program, arrays, solution), seed)


def select_solution(program: dict[str, Any], arrays: dict[str, np.ndarray], solution: int) -> dict[str, np.ndarray]:
    """Return the arrays of one solution; raise ValueError if there is none with this number."""
    names = program.get("solutions", [])
    count = len(arrays[names[0]]) if names else 1
    if not 0 <= solution < count:
        raise ValueError(f"solution={solution}: must be from 0 to {count - 1}")
    return {name: x[solution] if name in names else x for name, x in arrays.items()}


def read_policy(file: Any, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
    """Read and check the content of a policy file.

    Args:
        file: File that is open for reading bytes.
        name: Name of the file, for errors.

    Returns:
        The program, the arrays by name, and a description: the environment and, for policies that ship with evorl,
        their results. The description is not checked.

    Raises:
        ValueError: The file is not a policy that this version can read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            _require(sum(entry.file_size for entry in archive.infolist()) <= MAX_BYTES)
        file.seek(0)
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
        program, about = (json.loads(str(arrays.pop(key, "{}"))) for key in ("program", "about"))
        _require(all(isinstance(x, np.ndarray) and x.dtype.kind in NUMERIC_KINDS for x in arrays.values()))
        if program.get("schema", 1) not in (1, SCHEMA):
            raise ValueError(f"{name}: has schema {program['schema']!r:.20}, must be {SCHEMA}")
        _check_program(program, arrays)
    except UNREADABLE as error:
        told = str(error) if str(error).startswith(f"{name}: ") else f"{name}: is not an exported policy"
        raise ValueError(told) from error
    return program, arrays, about if isinstance(about, dict) else {}


def _check_program(program: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError or KeyError unless each value is defined before it is used, and operations are known."""
    for key, kind in PARTS.items():
        _require(isinstance(program[key], kind))
    for leaf in program["obs"]:
        _require(leaf.keys() == LEAF.keys() and all(isinstance(leaf[key], kind) for key, kind in LEAF.items()))
        np.dtype(leaf["dtype"])
        _check_shape(leaf["shape"])
    solutions = program.get("solutions", [])
    _require(len({len(arrays[name]) for name in solutions}) <= 1)
    known = {*arrays, *(leaf["name"] for leaf in program["obs"]), *program["memory_inputs"]}
    _require(set(program["memory"]) <= set(arrays) and len(program["memory"]) == len(program["memory_inputs"]))
    for operation, inputs, outputs, options in program["operations"]:
        _require(operation in OPERATIONS and set(inputs) <= known and isinstance(options, dict))
        _check_shape(options.get("shape", []))
        known |= set(outputs)
    _require(set(_list_names(program["action"])) | set(program["memory_outputs"]) <= known)
    _require(len(program["memory_outputs"]) == len(program["memory"]))


def _check_shape(shape: list[int]) -> None:
    _require(all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) <= MAX_SIZE)


def _list_names(node: Any) -> list[str]:
    parts = node.values() if isinstance(node, dict) else node
    return [node] if isinstance(node, str) else [name for part in parts for name in _list_names(part)]


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("is not an exported policy")
