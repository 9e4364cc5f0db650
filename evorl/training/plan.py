"""What a training would be, found out without compiling: its parts, its sizes, and whether it fits in memory."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from evorl import tree
from evorl.agents.learner import Learner
from evorl.errors import OptionError
from evorl.replay import Replay, split
from evorl.training import devices
from evorl.training.checkpoint import size
from evorl.types import State


@contextmanager
def indexing() -> Iterator[None]:
    """Raises OptionError where the sizes of a workflow, multiplied, are beyond what an index can be."""
    try:
        yield
    except OverflowError as error:
        raise OptionError(f"the workflow's sizes are beyond what an index can be: {error}") from error


def require_memory(shapes: State) -> None:
    """Raises OptionError, naming the largest field, where a state needs more memory than there is."""
    needed, there = tree.nbytes(shapes), devices.memory_limit()
    if needed > there:
        path, leaf = max(jax.tree_util.tree_leaves_with_path(shapes), key=lambda item: tree.nbytes(item[1]))
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        raise OptionError(
            f"the state needs {size(needed)} of memory and there are {size(there)}; "
            f"its largest field is {name}, {size(tree.nbytes(leaf))}"
        )


def describe(workflow: Any, shapes: State, num_seeds: int) -> str:
    """The workflow as a tree, the sizes of its state, what an iteration does, and the size of a checkpoint."""
    light, replays = split(shapes)
    there = devices.memory_limit()
    lines = ["workflow", *_parts(workflow, 1), "", "state" + f", {num_seeds} seeds together" * (num_seeds > 1)]
    rows = list(_sizes(shapes))
    width = max(len(name) for name, _, _ in rows)
    lines += [f"  {name:{width}}  {held:>9}  {what}".rstrip() for name, held, what in rows]
    work = getattr(workflow, "work", {})
    lines += ["", *(f"{name.replace('_', ' ')} in an iteration: {_range(*ends)}" for name, ends in work.items())]
    lines.append(f"memory: {size(tree.nbytes(shapes))} for the state, {size(there)} are there")
    lines.append(f"checkpoint: up to {size(2 * tree.nbytes(light) + tree.nbytes(replays))}")
    return "\n".join(lines)


def _parts(part: Any, depth: int, name: str = "") -> Iterator[str]:
    """A dataclass with its plain fields on one line, its parts below."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    parts = {name: value for name, value in fields.items() if dataclasses.is_dataclass(value)}
    plain = "  ".join(f"{name}={value}" for name, value in fields.items() if name not in parts)
    yield f"{'  ' * depth}{f'{name}: ' if name else ''}{type(part).__name__}  {plain}".rstrip()
    for inner, value in parts.items():
        if not inner.endswith("_space"):
            yield from _parts(value, depth + 1, inner)


def _sizes(state: State, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, bytes and what is in it, of every learner, replay and other field of a state."""
    if isinstance(state, Learner):
        count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        followed = ", their target" * bool(jax.tree.leaves(state.target))
        yield name, size(tree.nbytes(state)), f"{count:,} parameters{followed} and moments"
    elif isinstance(state, Replay):
        yield name, size(tree.nbytes(state)), f"{jax.tree.leaves(state.tables)[0].shape[-2]:,} rows"
    elif name.count(".") < 2 and name != "hyperparams" and dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            yield from _sizes(getattr(state, field.name), f"{name}.{field.name}".lstrip("."))
    elif tree.nbytes(state):
        yield name, size(tree.nbytes(state)), ""


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
