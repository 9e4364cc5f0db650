"""Changes of hyperparameters when a training resumes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from evorl.errors import unknown_name_error
from evorl.parts import iterate_numbers
from evorl.schedules import Schedule
from evorl.types import EvolvingWorkflow, Population, State, Workflow


def list_numbers(workflow: Workflow) -> dict[str, bool]:
    """Return all hyperparameters of a workflow and its members, by dotted name, and whether each is searched."""
    found = {name: False for name, *_ in iterate_numbers(workflow)}
    if isinstance(workflow, Population):
        found |= {f"inner.{name}": is_searched for name, is_searched in list_numbers(workflow.inner).items()}
    elif isinstance(workflow, EvolvingWorkflow):
        space = getattr(workflow, "search_space", None)  # without one, any number may be searched
        for name, is_searched in list_numbers(workflow.population).items():
            own = space is None or name.removeprefix("inner.") in space.priors
            found[f"population.{name}"] = is_searched or own
    return found


def replace_numbers(workflow: Workflow, state: Any, changes: Mapping[str, float]) -> State:
    """Return a state with changed hyperparameters, with the same value for all seeds and members.

    Args:
        workflow: Workflow of the state.
        state: State, whose leaves may have leading axes.
        changes: New values by dotted name, as in `list_numbers`.

    Raises:
        OptionError: A name is not a hyperparameter.
    """
    known = list_numbers(workflow)
    for name in changes:
        if name not in known:
            raise unknown_name_error("number", name, known)
    if isinstance(workflow, Population):
        return replace_numbers(workflow.inner, state, _drop_prefix(changes, "inner."))
    if isinstance(workflow, EvolvingWorkflow):
        of_members = _drop_prefix(changes, "population.")
        if of_members:
            state = replace(state, members=replace_numbers(workflow.population, state.members, of_members))
        changes = {name: value for name, value in changes.items() if not name.startswith("population.")}
    numbers = state.numbers
    for name, value in changes.items():
        numbers = _set_number(numbers, name.split("."), value)
    return replace(state, numbers=numbers)


def _drop_prefix(changes: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in changes.items() if name.startswith(prefix)}


def _set_number(numbers: Any, path: list[str], value: float) -> Any:
    if not path:
        return jax.device_put(jnp.full_like(numbers, value), numbers.sharding)
    name, *rest = path
    if isinstance(numbers, Schedule):
        return replace(numbers, **{name: _set_number(getattr(numbers, name), rest, value)})
    return {**numbers, name: _set_number(numbers[name], rest, value)}
