"""Export of policies: as arrays with a list of NumPy operations, or as a program of jax.export."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from evorl import package, tree
from evorl.errors import OptionError, require
from evorl.numpy_policy import MAX_BYTES, SCHEMA
from evorl.spaces import fill_privileged_state, get_policy_space, to_shape_structs
from evorl.training.exported_policy import describe_environment
from evorl.training.flat_program import FlatProgram
from evorl.training.pareto_front import Front, with_solution
from evorl.training.policy import Member, Policy
from evorl.training.records import files
from evorl.training.runs import restore_run
from evorl.types import PolicyFn, SupportsPolicyParams

PLATFORMS = ("cpu", "cuda")
SUFFIXES = (".npz", ".jaxexport")


@dataclass(frozen=True)
class Solutions:
    """Solutions of a front or an archive, and the policy with given parameters."""

    front: Front
    bind: Callable[[Any], PolicyFn]


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
        size = sum(np.asarray(x).nbytes for x in arrays.values())
        most = MAX_BYTES - 1_000 * len(arrays)  # each array has a header
        limit = f"its arrays have {size / 1e6:.0f} MB, at most {most / 1e6:.0f} can be read; export single solutions"
        require(size <= most, "out", path, limit)
        np.savez_compressed(written, **arrays)
    else:
        why = "is only possible for .npz"
        require(not sampled, "sampled", "true", why)
        require(solutions is None, "solutions", "true", why)
        written.write(to_jax_export(policy))
    files.write_atomically(path, written.getvalue())


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
    try:
        flat = FlatProgram(closed)
    except OptionError as error:
        raise OptionError(f"{error}; {'leave out sampled=true' if sampled else 'use .jaxexport'}") from None
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
        action, after, _ = play(fill_privileged_state(policy.env.observation_space, obs), memory, key)
        return (action, after) if policy.is_recurrent else action

    return act


def _get_inputs(policy: Policy) -> tuple[Any, Any]:
    """Return an observation of zeros, without privileged state, and the recurrent state at the start of an episode."""
    obs = tree.zeros_like(to_shape_structs(get_policy_space(policy.env.observation_space)))
    return obs, jax.tree.map(jnp.asarray, policy.memory)
