"""Checks and descriptions of a training before it is compiled: its components, sizes and memory."""

import dataclasses
import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from evorl import tree
from evorl.agents.train_state import TrainState
from evorl.errors import OptionError, require
from evorl.parts import is_part, resolve_numbers
from evorl.replay.state_replays import split_replays
from evorl.training import devices
from evorl.training.configuration.parts import get_fields
from evorl.training.program import Program, make_run_args
from evorl.training.progress import Budget, StepBound
from evorl.training.records.checkpoint import estimate_disk_size, format_bytes
from evorl.types import HasMaxIterations, ReplayBuffer, State, Workflow
from evorl.workflows import base

OVERRUN_FACTOR = 1.1  # a warning is printed if training may exceed a budget by this factor


@contextmanager
def explain_index_overflow() -> Iterator[None]:
    """Raise OptionError if a product of the workflow's sizes is too large for an index."""
    try:
        yield
    except OverflowError as error:
        raise OptionError(f"the sizes of the workflow overflow an array index: {error}") from error


@contextmanager
def explain_missing_numbers() -> Iterator[None]:
    """Raise OptionError if a component reads a hyperparameter that it does not declare."""
    try:
        yield
    except AttributeError as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        reader = frames[-1].f_code.co_qualname.partition(".<locals>")[0]
        if not is_part(error.obj):
            raise
        declared = "declare it as number(default, low, high)"
        line = f"{type(error.obj).__name__}: has no {error.name}, which {reader} reads; {declared}"
        raise OptionError(line) from error


def trace_shapes(workflow: Any, num_seeds: int = 1) -> State:
    """Return the shapes of the initial state of a training; its program is traced but not compiled.

    Raises:
        OptionError: A component reads an undeclared hyperparameter, a size is too large, or the state does
            not fit in memory.
    """
    program = Program(workflow, range(num_seeds), 1, False)
    with explain_index_overflow(), explain_missing_numbers():
        found = jax.eval_shape(program.init, program.keys, resolve_numbers(workflow))
        jax.eval_shape(program.run, found, program.keys, *make_run_args(0, 0, False))
    require_memory(found, num_seeds)
    return found


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Raise OptionError if a device runs out of memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        line = str(error).partition("\n")[0]
        if not line.startswith("RESOURCE_EXHAUSTED"):
            raise
        less = "use a smaller num_seeds, population, num_envs or batch_size"
        raise OptionError(f"out of memory: {line.partition(': ')[2]}; {less}") from error


def require_memory(shapes: State, num_seeds: int = 1) -> None:
    """Raise OptionError if the state of all seeds does not fit in memory; the message names the largest field.

    A training also keeps the best state so far, without replay buffers.

    With shardings, what counts is the part of one device, or on a CPU, the parts of all devices of this process.
    """
    needed = measure_share(shapes) + measure_share(split_replays(shapes)[0])
    there = devices.memory_limit()
    if needed > there:
        path, leaf = max(jax.tree_util.tree_leaves_with_path(shapes), key=lambda item: tree.nbytes(item[1]))
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        fits = f"num_seeds={num_seeds}: at most {there * num_seeds // needed} fit; " if num_seeds > 1 else ""
        raise OptionError(
            f"{fits}the state and the best state need {format_bytes(needed)} of memory, and {format_bytes(there)} are "
            f"available; its largest field is {name}, {format_bytes(tree.nbytes(leaf))}"
        )


def measure_share(shapes: State) -> int:
    """Return the bytes of a state in the memory of one device, or on a CPU, in that of this process."""
    leaves = jax.tree.leaves(shapes)
    shardings = [x.sharding for x in leaves if getattr(x, "sharding", None) is not None]
    if not shardings:
        return tree.nbytes(shapes)
    parts = [math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves]
    shared = len(shardings[0].addressable_devices) if jax.default_backend() == "cpu" else 1
    return shared * sum(parts)


def limit_budget(budget: Budget, workflow: Workflow) -> Budget:
    """Return the budget with at most the maximum number of iterations of a workflow, if it has one.

    Raises:
        OptionError: The budget has more iterations, or it has only env steps or episodes and the workflow takes
            none.
    """
    if isinstance(workflow, HasMaxIterations):
        budget = budget.with_max_iterations(workflow.max_iterations)
    ends = math.isfinite(min(budget.iterations, budget.minutes))
    name = "env_steps" if math.isfinite(budget.env_steps) else "episodes"
    why = "is never reached, because an iteration takes no env steps; use iterations or minutes"
    reached = ends or StepBound(*base.max_env_steps(workflow)).subsequent > 0
    require(reached, name, f"{getattr(budget, name):.0f}", why)
    return budget


def find_unmet_limits(workflow: Any, budget: Budget, chunk: int) -> Iterator[str]:
    """Yield a warning for each limit of a budget that training may exceed by more than 10 %, or never reach.

    Args:
        workflow: Workflow to train.
        budget: Budget of the training.
        chunk: Iterations per call of the compiled program.
    """
    name, most, limit = type(workflow).__name__, StepBound(*base.max_env_steps(workflow)), budget.env_steps
    if budget.is_unbounded(most):
        open_ = " and ".join(f"{one}={x:,.10g}" for one, x in budget.limits.items() if one in ("env_steps", "episodes"))
        length = f"of {chunk} iterations" if chunk > 1 else "of 1 iteration"
        yield f"{open_}: {name} has no limit of env steps per iteration; training ends after a whole chunk {length}"
    elif math.isfinite(limit):
        yield from _find_unmet_steps(name, getattr(workflow, "iteration_cost", {})["env_steps"][0], most, limit)


def _find_unmet_steps(name: str, least: int, most: StepBound, limit: float) -> Iterator[str]:
    count = most.min_iterations(limit, from_start=True)
    end = most.initial + (count - 1) * most.subsequent
    given = f"env_steps={limit:,.10g}"
    if math.isinf(count):
        yield f"{given}: an iteration of {name} takes no env steps; use iterations or minutes"
    elif count == 1 and most.initial > most.subsequent:
        if end > OVERRUN_FACTOR * limit:
            yield f"{given}: the only iteration of {name} takes {end:,} env steps with random actions"
    elif least == most.subsequent:
        if end > OVERRUN_FACTOR * limit:
            yield f"{given}: an iteration of {name} takes {least:,} env steps; training ends after {end:,}"
    elif limit + most.subsequent - 1 > OVERRUN_FACTOR * limit:
        took = f"takes {least:,} to {most.subsequent:,} env steps"
        yield f"{given}: an iteration of {name} {took}; training may exceed the budget by up to {most.subsequent - 1:,}"


def describe_training(workflow: Any, shapes: State, num_seeds: int, saves_replay: bool = True) -> str:
    """Describe the workflow as a tree, the sizes of its state, the work of an iteration, and the checkpoint size."""
    there = devices.memory_limit()
    lines = ["workflow", *_describe_parts(workflow, 1), "", "state" + f", {num_seeds} seeds together" * (num_seeds > 1)]
    rows = list(_list_sizes(shapes))
    width = max(len(name) for name, _, _ in rows)
    lines += [f"  {name:{width}}  {held:>9}  {what}".rstrip() for name, held, what in rows]
    work = getattr(workflow, "iteration_cost", {})
    lines += ["", *(f"{name.replace('_', ' ')} per iteration: {_format_range(*ends)}" for name, ends in work.items())]
    whole, best = (format_bytes(tree.nbytes(x)) for x in (shapes, split_replays(shapes)[0]))
    lines.append(f"memory: {whole} for the state and {best} for the best state, {format_bytes(there)} available")
    lines.append(f"checkpoint: up to {format_bytes(estimate_disk_size(shapes, saves_replay))}")
    return "\n".join(lines)


def _describe_parts(part: Any, depth: int, name: str = "") -> Iterator[str]:
    """Yield one line for a component with its plain fields, followed by the lines of its inner components."""
    values = {field.name: getattr(part, field.name) for field in get_fields(part)}
    parts = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    shown = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    plain = "  ".join(f"{name}={value}" for name, value in shown.items() if name not in parts)
    yield f"{'  ' * depth}{f'{name}: ' if name else ''}{type(part).__name__}  {plain}".rstrip()
    for inner, value in parts.items():
        if not inner.endswith("_space"):
            yield from _describe_parts(value, depth + 1, inner)


def _list_sizes(state: State, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, size in bytes and description of each learner, replay buffer and other field of a state."""
    if isinstance(state, TrainState):
        count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        followed = ", target parameters" * bool(jax.tree.leaves(state.target_params))
        yield name, format_bytes(tree.nbytes(state)), f"{count:,} parameters{followed} and optimizer state"
    elif isinstance(state, ReplayBuffer):
        leaves = jax.tree_util.tree_leaves_with_path(state)
        rows = [leaf.shape[-2] for path, leaf in leaves if ".tables" in jax.tree_util.keystr(path)]
        yield name, format_bytes(tree.nbytes(state)), f"{rows[0]:,} rows" if rows else ""
    elif name.count(".") < 2 and name != "numbers" and dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            if field.metadata.get("pytree_node", True):
                yield from _list_sizes(getattr(state, field.name), f"{name}.{field.name}".lstrip("."))
    elif tree.nbytes(state):
        yield name, format_bytes(tree.nbytes(state)), ""


def _format_range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
