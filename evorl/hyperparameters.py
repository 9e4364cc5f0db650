"""Declaring hyperparameters: numbers that are leaves of a state, so that any workflow can be vmapped over them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from evorl import tree
from evorl.errors import OptionError, require, to_printable
from evorl.parts import Number, get_default, is_part, number_metadata, read_numbers, require_given_once
from evorl.types import HasHyperparams, Prior


def hyperparameter(
    default: float, low: float = -math.inf, high: float = math.inf, about: str = "", prior: Prior | None = None
) -> Any:
    """A dataclass field for one number in [low, high]; off is 0 or inf, never None.

    low and high say what is legal; prior, in between, where it is worth searching. Without one it is not searched.
    """
    return struct.field(default=default, metadata=number_metadata(default, low, high, about, prior))


def default_hyperparams(part: Any) -> Any:
    """The hyperparameters of a part, and of its own parts, at their defaults; raises OptionError where it has none."""
    if is_part(part):
        return read_numbers(part)
    if not isinstance(part, HasHyperparams):
        raise OptionError(f"{type(part).__name__}: has no hyperparams(), which gives those that it takes; give them")
    return part.hyperparams()


def check_given_once(workflow: Any, hyperparams: Any) -> None:
    """Raises OptionError where a part of a workflow was made with other numbers than hyperparams has for it.

    Those of parts that a workflow has by default are replaced.
    """
    if is_part(workflow):
        require_given_once(workflow, hyperparams)
        return
    if not (dataclasses.is_dataclass(hyperparams) and dataclasses.is_dataclass(workflow)):
        return
    for field in dataclasses.fields(workflow):
        part, numbers = getattr(workflow, field.name), getattr(hyperparams, field.name, None)
        if is_part(part) and numbers is not None and part != get_default(field):
            require_given_once(part, numbers, f"{field.name}.")


def flatten_hyperparams(hyperparams: Any, prefix: str = "") -> dict[str, tuple[Any, float, float]]:
    """Every number of (nested) hyperparameters, dataclasses or dicts, by dotted name: (value, low, high)."""
    found = {}
    if isinstance(hyperparams, Mapping):
        for name, value in hyperparams.items():
            number = not dataclasses.is_dataclass(value)
            found |= (
                {prefix + name: (value, -math.inf, math.inf)}
                if number
                else flatten_hyperparams(value, f"{prefix}{name}.")
            )
        return found
    for field in dataclasses.fields(hyperparams):
        value = getattr(hyperparams, field.name)
        if "low" in field.metadata:
            found[prefix + field.name] = value, field.metadata["low"], field.metadata["high"]
        elif dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            found |= flatten_hyperparams(value, f"{prefix}{field.name}.")
        elif isinstance(field.default, (int, float)):
            raise OptionError(f"{prefix}{field.name}={value}: must be declared with hyperparameter(default, low, high)")
        else:
            raise OptionError(f"{prefix}{field.name}={value}: must be a part with a _target_")
    return found


def is_hyperparams(part: Any) -> bool:
    """Whether something is hyperparameters, of one part or of several, or a class of them."""
    if not dataclasses.is_dataclass(part):
        return isinstance(part, Mapping)
    return all("low" in x.metadata or is_hyperparams(_get_field_value(part, x)) for x in dataclasses.fields(part))


def _get_field_value(part: Any, field: dataclasses.Field[Any]) -> Any:
    """What a dataclass has in a field, or its class makes for it."""
    if not isinstance(part, type):
        return getattr(part, field.name)
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def check_hyperparams(hyperparams: Any, prefix: str = "hyperparams.", searched: bool = False) -> Any:
    """Returns hyperparams; raises OptionError where a number is not one, or is out of its range.

    Where searched, priors may stand for numbers, whose ends are in the range.
    """
    require_pytree(hyperparams, prefix)
    for name, (value, low, high) in flatten_hyperparams(hyperparams, prefix).items():
        if isinstance(value, Prior):
            require(searched, name, value, "a prior needs a meta-workflow that searches, such as agent=pbt")
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise OptionError(f"{name}={value}: must be a number")
        for number in value.bounds if isinstance(value, Prior) else (value,):
            require(low <= number <= high, name, value, f"must be between {low:g} and {high:g}")
    return hyperparams


def require_pytree(hyperparams: Any, prefix: str = "hyperparams.") -> None:
    """Raises OptionError where hyperparameters are none, but a number or another leaf."""
    pytree = jax.tree.structure(hyperparams) != jax.tree.structure(0)
    require(pytree, prefix.rstrip("."), type(hyperparams).__name__, "must be a flax.struct.dataclass")


def check_ranges(hyperparams: Any, prefix: str = "hyperparams.") -> None:
    """Raises OptionError where a declared number, or one of an array, is out of its range; tracers are not known."""
    if isinstance(hyperparams, Mapping):
        parts = {name: (value, {}) for name, value in hyperparams.items()}
    elif dataclasses.is_dataclass(hyperparams) and not isinstance(hyperparams, type):
        parts = {x.name: (getattr(hyperparams, x.name), x.metadata) for x in dataclasses.fields(hyperparams)}
    else:
        return
    for name, (value, metadata) in parts.items():
        if "low" not in metadata:
            check_ranges(value, f"{prefix}{name}.")
        elif not isinstance(value, (Prior, Tracer)):
            low, high, numbers = metadata["low"], metadata["high"], np.asarray(value)
            real = np.issubdtype(numbers.dtype, np.integer) or jnp.issubdtype(numbers.dtype, np.floating)
            require(real, f"{prefix}{name}", to_printable(value), "must be a number")
            inside = bool(((low <= numbers) & (numbers <= high)).all())
            require(inside, f"{prefix}{name}", to_printable(value), f"must be between {low:g} and {high:g}")


def to_search_space(hyperparams: Any) -> Any:
    """Hyperparameters as a space to search: with its declared prior in place of every number at its default.

    Numbers without a prior, and those that were given another value or a prior, stay as they are.
    """
    changed = {}
    if isinstance(hyperparams, Mapping):
        return {
            name: to_search_space(value) if dataclasses.is_dataclass(value) else value
            for name, value in hyperparams.items()
        }
    for field in dataclasses.fields(hyperparams):
        value = getattr(hyperparams, field.name)
        if "low" not in field.metadata:
            parts = dataclasses.is_dataclass(value) or isinstance(value, Mapping)
            changed[field.name] = to_search_space(value) if parts else value
        elif field.metadata["prior"] is not None and not isinstance(value, Prior) and value == field.default:
            changed[field.name] = field.metadata["prior"]
    return dataclasses.replace(hyperparams, **changed)


def linear_schedule(start: Number, end: Number, steps: Any, over: Number) -> Any:
    """From start to end over so many steps, start all the time where over is infinite."""
    return start + (end - start) * jnp.minimum(steps / over, 1.0)


def cosine_schedule(start: Number, end: Number, steps: Any, over: Number) -> Any:
    """From start to end over so many steps along half a cosine, start all the time where over is infinite."""
    return end + (start - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(steps / over, 1.0))) / 2


def as_arrays(hyperparams: Any) -> Any:
    """Hyperparameters as leaves of a state: arrays, float32 unless they are whole numbers by declaration.

    Raises OptionError where one is out of its range, and where JAX computes in 64 bits, for which no state is made.
    """
    wide = jnp.result_type(float) == jnp.float64
    require(not wide, "jax_enable_x64", True, "must be False: evorl computes in 32 bits, float32 and int32")
    check_ranges(hyperparams)
    return tree.drop_weak_types(_cast_to_declared_types(hyperparams))


def resolve_numbers(part: Any, hyperparams: Any) -> Any:
    """Return hyperparameters as leaves of a state, those of a part where None are given; raises as `as_arrays`."""
    return as_arrays(default_hyperparams(part) if hyperparams is None else hyperparams)


def _cast_to_declared_types(params: Any) -> Any:
    """params with whole numbers as floats where the default is one, as 1 for a learning rate."""
    if isinstance(params, Mapping):
        return {name: _cast_to_declared_types(value) for name, value in params.items()}
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        return params
    changed = {}
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        changed[field.name] = (
            float(value) if whole and isinstance(field.default, float) else _cast_to_declared_types(value)
        )
    return dataclasses.replace(params, **changed)


def replace_numbers(hyperparams: Any, numbers: Mapping[str, Any], prefix: str = "") -> Any:
    """hyperparams with the arrays that are given, by dotted name, in place of its numbers, of the types declared."""
    if isinstance(hyperparams, Mapping):
        return {
            name: replace_numbers(value, numbers, f"{prefix}{name}.")
            if dataclasses.is_dataclass(value)
            else numbers.get(f"{prefix}{name}", value)
            for name, value in hyperparams.items()
        }
    changed = {}
    for field in dataclasses.fields(hyperparams):
        name, value = f"{prefix}{field.name}", getattr(hyperparams, field.name)
        if name in numbers:
            whole = isinstance(field.default, int)
            changed[field.name] = jnp.asarray(numbers[name], jnp.int32 if whole else jnp.float32)
        elif "low" not in field.metadata:
            changed[field.name] = replace_numbers(value, numbers, f"{name}.")
    return dataclasses.replace(hyperparams, **changed)


def make_default_field(cls: type) -> Any:
    """A nested default that a dataclass field may hold."""
    return struct.field(default_factory=cls)
