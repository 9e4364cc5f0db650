"""Export of policies: as arrays with a list of NumPy operations, or as a program of jax.export."""

import contextlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from evorl import package, tree
from evorl.errors import OptionError, require
from evorl.numpy_policy import OPERATIONS, SCHEMA
from evorl.spaces import to_shape_structs
from evorl.training.exported_policy import describe_environment
from evorl.training.pareto_front import Front, with_solution
from evorl.training.policy import Member, Policy
from evorl.training.runs import restore_run
from evorl.types import PolicyFn, SupportsPolicyParams

PLATFORMS = ("cpu", "cuda")
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # parameters of CALLS that hold the called function
SUFFIXES = (".npz", ".jaxexport")


@dataclass(frozen=True)
class Solutions:
    """Solutions of a front or an archive, and the policy with given parameters."""

    front: Front
    bind: Callable[[Any], PolicyFn]


class Operation(NamedTuple):
    """One operation of an exported policy; its inputs and outputs are names of values."""

    name: str
    inputs: list[str]
    outputs: list[str]
    options: dict[str, Any]


def export_policy(
    policy: Policy,
    path: Path,
    sampled: bool = False,
    solutions: Solutions | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a policy to a file.

    Args:
        policy: Policy, as returned by `evorl.load`.
        path: A .npz file, which `evorl.numpy_policy` reads, or a .jaxexport file, which
            jax.export.deserialize reads.
        sampled: True for the policy that samples its actions, only for .npz. By default, its actions are greedy.
        solutions: Solutions of a front or an archive, which are all written to a .npz file; None for the policy alone.
        about: Description that a .npz file also holds, as JSON can represent it: the environment, for `evorl.load`.

    Raises:
        OptionError: The path has another suffix, `evorl.numpy_policy` does not support an operation of the
            policy, or the package flatbuffers, which jax.export needs, is missing.
    """
    require(path.suffix in SUFFIXES, "out", path, f"must end with {' or '.join(SUFFIXES)}")
    written = io.BytesIO()
    if path.suffix == ".npz":
        arrays: Any = to_arrays(policy, sampled, solutions)
        if about is not None:
            arrays["about"] = np.asarray(json.dumps(about))
        np.savez_compressed(written, **arrays)
    else:
        why = "is only possible for .npz"
        require(not sampled, "sampled", "true", why)
        require(solutions is None, "solutions", "true", why)
        written.write(to_jax_export(policy))
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # written first, so that the file is never incomplete
    try:
        new.write_bytes(written.getvalue())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def export_run(
    run_dir: Path,
    path: Path,
    member: Member = None,
    seed: int | None = None,
    which: str | None = None,
    solution: int | None = None,
    solutions: bool = False,
    sampled: bool = False,
    trust: Sequence[str] = (),
    record: Mapping[str, Any] | None = None,
) -> None:
    """Write the policy of a run, with its environment, to a file.

    Args:
        run_dir: Run directory.
        path: A .npz or a .jaxexport file; see `export_policy`.
        member: Member of a population; see `evorl.load`.
        seed: Seed of the run; None for the best.
        which: "best" or "last"; see `evorl.load`.
        solution: Number of a solution of a front or an archive; None for the policy that represents the search.
        solutions: True to write all solutions of the front or archive.
        sampled: True for the policy that samples its actions.
        trust: Packages whose classes the configuration may name.
        record: Results of the run, which a .npz file also holds.

    Raises:
        OptionError: The run has no such policy, or it cannot be exported.
    """
    run = restore_run(run_dir, "run", which, trust)
    workflow, state = run.select_policy(seed, member)
    front = Front.from_state(workflow, state) if solutions or solution is not None else None
    chosen = None
    if solutions:
        require(solution is None, "solution", solution, "cannot be combined with solutions=true")
        if front is None or not isinstance(workflow, SupportsPolicyParams):
            raise OptionError(f"solutions=true: {run_dir} has no front or archive of policies")
        bound = workflow
        chosen = Solutions(front, lambda params: bound.policy(bound.with_policy_params(state, params), sampled))
    policy = Policy(workflow, with_solution(front, workflow, state, solution))
    about = describe_environment(run.cfg) | ({} if record is None else {"record": dict(record)})
    export_policy(policy, path, sampled, chosen, about)


def to_jax_export(policy: Policy) -> bytearray:
    """Return the policy as a serialized program for any batch size, on CPU and CUDA.

    Its inputs are observations and, for a recurrent policy, recurrent states.
    """
    act = jax.vmap(_make_act(policy))
    obs, memory = jax.eval_shape(lambda: _get_inputs(policy))
    (rows,) = jax_export.symbolic_shape("rows")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype), (obs, memory))
    given = shapes if policy.is_recurrent else shapes[:1]
    try:
        return jax_export.export(jax.jit(act), platforms=PLATFORMS)(*given).serialize()
    except ImportError as error:
        raise OptionError(f"out: the package flatbuffers is missing; {package.install_command('export')}") from error


def to_arrays(policy: Policy, sampled: bool = False, solutions: Solutions | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a file that `evorl.numpy_policy` reads: parameters, and "program", which is JSON.

    Args:
        policy: Policy.
        sampled: True for the policy that samples its actions.
        solutions: Solutions of a front or an archive, whose parameters get a leading axis; None for the policy alone.

    Raises:
        OptionError: `evorl.numpy_policy` does not support an operation of the policy.
    """
    obs, memory = _get_inputs(policy)
    params = None if solutions is None else tree.index(solutions.front.params, 0)
    make = partial(_make_act, policy, sampled)
    act = make() if solutions is None else lambda obs, memory, params: make(solutions.bind(params))(obs, memory)
    given = (obs, memory) if solutions is None else (obs, memory, params)
    closed, shapes = jax.make_jaxpr(act, return_shape=True)(*given)
    flat = _Flattened(closed)
    n, m = len(jax.tree.leaves(obs)), len(jax.tree.leaves(memory))
    action, after = shapes if policy.is_recurrent else (shapes, None)
    outputs = iter(flat.outputs)
    leaves = [
        {"path": [getattr(key, "key", getattr(key, "idx", None)) for key in path], "name": name,
         "dtype": str(x.dtype), "shape": list(x.shape)}
        for (path, x), name in zip(jax.tree_util.tree_leaves_with_path(obs), flat.inputs[:n], strict=True)
    ]  # fmt: skip
    memory_names, params_names = [f"memory{i}" for i in range(m)], flat.inputs[n + m :]
    arrays = dict(zip(memory_names, map(np.asarray, jax.tree.leaves(memory)), strict=True))
    program: dict[str, Any] = {
        "schema": SCHEMA,
        "obs": leaves,
        "memory": memory_names,
        "memory_inputs": flat.inputs[n : n + m],
        "action": jax.tree.map(lambda _: next(outputs), action),
        "memory_outputs": [next(outputs) for _ in jax.tree.leaves(after)],
        "operations": flat.operations,
    }
    if solutions is not None:
        front = solutions.front
        arrays |= zip(params_names, map(np.asarray, jax.tree.leaves(front.params)), strict=True)
        arrays |= {"front_values": front.values, "front_descriptors": front.descriptors}
        program |= {"solutions": params_names, "objectives": list(front.names), "capacity": front.capacity}
    return arrays | flat.arrays | {"program": np.asarray(json.dumps(program))}


def _make_act(policy: Policy, sampled: bool = False, play: PolicyFn | None = None) -> Callable[..., Any]:
    """Return the policy for one observation; if recurrent, it also returns the next recurrent state.

    If `play` is given, it is the policy.
    """
    play, key = play or policy.as_policy_fn(sampled), jax.random.key(0)

    def act(obs: Any, memory: Any = policy.memory) -> Any:
        action, after, _ = play(obs, memory, key)
        return (action, after) if policy.is_recurrent else action

    return act


def _get_inputs(policy: Policy) -> tuple[Any, Any]:
    """Return an observation of zeros, and the recurrent state at the start of an episode."""
    obs = tree.zeros_like(to_shape_structs(policy.env.observation_space))
    return obs, jax.tree.map(jnp.asarray, policy.memory)


class _Flattened:
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
            raise OptionError(f"out: .npz does not support {', '.join(unknown)}; use .jaxexport")
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
        raise OptionError(f"out: .npz does not support {what}; use .jaxexport")
