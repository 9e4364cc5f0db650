"""Parts: frozen dataclasses whose numbers are leaves of a state, so that any workflow can be vmapped over them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict, unfreeze
from jax.core import Tracer

from evorl import tree
from evorl.errors import OptionError, require, to_printable, unknown_name_error
from evorl.part_docs import complete_docstring
from evorl.priors import Fixed
from evorl.schedules import Schedule
from evorl.types import Numbers, Prior

# as configured a float or int, a prior, Fixed or a schedule; in a bound part an array, or a tracer
Number: TypeAlias = Any
T = TypeVar("T")
MARK = "__evorl_part__"
SKELETON = "__evorl_skeleton__"
MAPPING = "numbers by name"  # in the metadata of a field
OF_STEPS = {"default": math.nan, "low": 0.0, "high": math.inf, "about": "env steps of a schedule", "prior": None}


def number_metadata(default: Any, low: float, high: float, about: str, prior: Prior | None) -> dict[str, Any]:
    """Return what is known of a number; raises OptionError where default or prior are out of the range."""
    require(low < high, "high", f"{high:g}", f"must be above low, {low:g}")
    for name, value in (("default", default), ("prior", prior)):
        _check_range(value, name, low, high)
    return {"low": low, "high": high, "about": about, "prior": prior}


def _check_range(value: Any, name: str, low: float, high: float) -> None:
    """Raise OptionError where a number, or one of those between which it will lie, is out of its range."""
    for end in _list_ends(value):
        require(low <= end <= high, name, to_printable(value), f"must be between {low:g} and {high:g}")


def _list_ends(value: Any) -> tuple[Any, ...]:
    """Return between which numbers one will lie: itself, the bounds of a prior, the ends of a schedule; no arrays."""
    if isinstance(value, Schedule):
        return tuple(end for name, one in value.items() if name in value.ends for end in _list_ends(one))
    if isinstance(value, Prior | Fixed):
        return value.bounds
    return () if value is None or hasattr(value, "dtype") else (value,)


def number(
    default: Any,
    low: float = -math.inf,
    high: float = math.inf,
    about: str = "",
    prior: Prior | None = None,
) -> Any:
    """Declare a number of a part, which is given by its name: as in `OpenES(64, std=0.1)`.

    Args:
        default: a float or an int; the number is of this type. Off is 0 or inf, never None. Or a schedule.
        low: the least that is legal.
        high: the most that is legal.
        about: what it is, for listings.
        prior: where it is worth searching; without one it is not searched.

    Raises:
        OptionError: where default or prior are out of the range.
    """
    return field(default=default, kw_only=True, metadata=number_metadata(default, low, high, about, prior))


def number_mapping() -> Any:
    """Declare a field of numbers by name, for a part whose numbers are known only when it is made.

    The part makes a FrozenDict of what it is given, so that it has a hash.
    """
    return field(default_factory=FrozenDict, kw_only=True, metadata={MAPPING: True})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """Make a class a part: a frozen dataclass whose fields are numbers, other parts, or static.

    Numbers are range-checked when a part is made, unless they are arrays. A part that holds arrays is bound to a state
    and has no hash, so that no program is compiled for their values.

    Raises:
        OptionError: where a part is made with a number that is none or out of its range.
    """
    plain: Any = cls
    own_check = plain.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        _check_numbers(self)
        if own_check is not None:
            own_check(self)

    if own_check is not None or not is_part(plain):  # else that of a base checks the numbers of this class too
        plain.__post_init__ = check
    documented = plain.__doc__ is not None  # else dataclass writes the signature
    made = dataclass(frozen=True)(plain)
    hash_fields = made.__hash__

    def hash_unbound(self: Any) -> int:
        of_numbers = (one.name for one in fields(self) if _is_number(one) or _is_mapping(one))
        bound = [name for name in of_numbers if _has_arrays(getattr(self, name))]
        if bound:
            raise TypeError(
                f"{plain.__name__} is bound to numbers of a state ({', '.join(bound)}), for which nothing may be "
                "compiled; its skeleton, the part before bind, is what has a hash"
            )
        return hash_fields(self)

    made.__hash__ = hash_unbound
    if documented:
        complete_docstring(made)
    setattr(made, MARK, True)
    return made


def _has_arrays(value: Any) -> bool:
    return any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(value))


def is_part(value: Any) -> bool:
    """Return whether something is a part, or a class of parts."""
    return hasattr(value, MARK)


def bind(skeleton: T, numbers: Numbers, env_steps: Any = 0) -> T:
    """Return a part with the numbers of a state in place of its own.

    Args:
        skeleton: a part; what is none stays as it is.
        numbers: nested by field name, as `read_numbers` gives them.
        env_steps: [] how many have been taken, by which schedules go; None where they stay schedules.

    Raises:
        OptionError: where they are not the numbers of this part.
    """
    return _bind(skeleton, numbers, "numbers", env_steps)


def _bind(skeleton: Any, numbers: Any, place: str, env_steps: Any) -> Any:
    if not is_part(skeleton) and not isinstance(skeleton, Mapping | tuple):
        return skeleton
    free = _list_mappings(skeleton)
    names = read_numbers(skeleton).keys() - free
    if numbers.keys() - free != names:
        wanted = f"must be those of {type(skeleton).__name__}, by name: {', '.join(sorted(names)) or 'none'}"
        raise OptionError(f"{place}={', '.join(numbers) or 'none'}: {wanted}")
    bound = dict(numbers)
    for name, one, own in _iterate_fields(skeleton):
        if name in numbers and (_is_number(one) or _is_mapping(one)):
            bound[name] = _evaluate_schedules(numbers[name], env_steps, _get_declaration(one))
        elif name in names:
            bound[name] = _bind(own, numbers[name], f"{place}.{name}", env_steps)
    if isinstance(skeleton, Mapping):
        return {**skeleton, **bound}
    if isinstance(skeleton, tuple):
        return tuple(bound.get(str(i), one) for i, one in enumerate(skeleton))
    return replace_unchecked(skeleton, bound)


def _evaluate_schedules(value: Any, env_steps: Any, declared: Mapping[str, Any]) -> Any:
    """Return a number, or numbers by name, with what schedules give after so many env steps in their place."""

    def evaluate(one: Any) -> Any:
        if env_steps is None or not isinstance(one, Schedule):
            return one
        found = one.value(env_steps)
        return jnp.round(found).astype(jnp.int32) if get_dtype(declared) is jnp.int32 else found

    return jax.tree.map(evaluate, value, is_leaf=lambda one: isinstance(one, Schedule))


def _iterate_fields(value: Any) -> Iterator[tuple[str, "Field[Any] | None", Any]]:
    """Give the fields of a part with what they hold, or the elements of a mapping or tuple: name, field, value."""
    if is_part(value):
        yield from ((one.name, one, getattr(value, one.name)) for one in fields(value))
    elif isinstance(value, Mapping):
        yield from ((name, None, one) for name, one in value.items())
    elif isinstance(value, tuple):
        yield from ((str(i), None, one) for i, one in enumerate(value))


def _list_mappings(value: Any) -> set[str]:
    """Return the names of the fields of a part that are numbers by name, of which it may be given more."""
    return {one.name for one in fields(value) if _is_mapping(one)} if is_part(value) else set()


def replace_unchecked(skeleton: T, changes: Mapping[str, Any]) -> T:
    """Return a part with other fields, without the checks of one that is made, which may not run in a trace.

    Args:
        skeleton: a part, bound or not.
        changes: fields by name.
    """
    derived = {name for name in vars(skeleton) if isinstance(getattr(type(skeleton), name, None), cached_property)}
    copy = object.__new__(type(skeleton))
    kept = {name: value for name, value in vars(skeleton).items() if name not in derived}
    copy.__dict__.update({SKELETON: get_skeleton(skeleton)} | kept | dict(changes))
    return copy


def is_bound(value: Any) -> bool:
    """Return whether a value is a part with the numbers of a state, or is none, so that it could not have any.

    One that was made of a bound part by `dataclasses.replace` is bound, as it has arrays for numbers.
    """
    if not is_part(value) or SKELETON in vars(value):
        return True
    return any(isinstance(number, jax.Array) for number in jax.tree.leaves(read_numbers(value)))


def get_skeleton(value: T) -> T:
    """Return the part that a bound one was made of, which has a hash; any other as it is."""
    return vars(value).get(SKELETON, value)


def read_numbers(value: Any) -> dict[str, Any]:
    """Return the numbers of a part as they are given, nested by field name, without parts that have none.

    Those of a population stay out, whose members' states have them.
    """
    return map_numbers(lambda name, own, declared: own, value)


def map_numbers(change: Callable[[str, Any, Mapping[str, Any]], Any], value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the numbers of a part, nested by field name, with what a function makes of each.

    Args:
        change: of the dotted name of a number, its value and what is declared of it: its default, low, high, about and
            prior, or nothing in a `number_mapping`.
        value: a part.
        prefix: of the names.
    """
    found = {}
    for name, one, own in _iterate_fields(value):
        place = f"{prefix}{name}"
        if _is_number(one):
            found[name] = _map_number(change, place, own, _get_declaration(one))
        elif _is_mapping(one):
            by_name = unfreeze(own).items()
            found[name] = {key: _map_number(change, f"{place}.{key}", number, {}) for key, number in by_name}
        else:
            found[name] = map_numbers(change, own, f"{place}.")
    return {name: numbers for name, numbers in found.items() if not isinstance(numbers, dict) or numbers}


def _map_number(
    change: Callable[[str, Any, Mapping[str, Any]], Any], place: str, own: Any, declared: Mapping[str, Any]
) -> Any:
    """Return what a function makes of a number, or of each of those of a schedule in its place."""
    if not isinstance(own, Schedule):
        return change(place, own, declared)
    at_start = {} if isinstance(declared.get("default"), Schedule) else {"start": declared}
    of_end = {**declared, "default": math.nan, "prior": None}
    of = {name: at_start.get(name, of_end) if name in own.ends else OF_STEPS for name, _ in own.items()}
    return replace(own, **{name: change(f"{place}.{name}", one, of[name]) for name, one in own.items()})


def iterate_numbers(value: Any) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return every number of a part and of its own parts, in the order of fields, as `map_numbers` gives it."""
    found: list[tuple[str, Any, Mapping[str, Any]]] = []
    map_numbers(lambda *of: found.append(of), value)
    return found


def get_dtype(declared: Mapping[str, Any]) -> Any:
    """Return the type of a number in a state: int32 where its declared default is an int, else float32."""
    return jnp.int32 if isinstance(declared.get("default"), int) else jnp.float32


def resolve_numbers(value: Any, numbers: Numbers | None = None, place: str = "numbers") -> dict[str, Any]:
    """Return the numbers of a part as leaves of a state: arrays, float32, or int32 where the default is an int.

    Args:
        value: a part; of what is none there are no numbers.
        numbers: those that differ from the part's own, nested by field name; arrays, also with leading axes.
        place: where they stand, for errors.

    Raises:
        OptionError: where one is no number or out of its range, is a prior, or is of no field, and where JAX computes
            in 64 bits, for which no state is made.
    """
    tree.require_32_bits()
    return _resolve(value, numbers or {}, f"{place}.")


def _resolve(value: Any, given: Any, place: str) -> dict[str, Any]:
    require(isinstance(given, Mapping), place.rstrip("."), to_printable(given), "must be a mapping, by field name")
    names, found = read_numbers(value).keys() | _list_mappings(value), {}
    for name in given:
        if name not in names:
            raise unknown_name_error("number", f"{place}{name}", [f"{place}{one}" for one in sorted(names)])
    for name, one, own in _iterate_fields(value):
        if _is_number(one):
            found[name] = _resolve_number(own, given.get(name, {}), f"{place}{name}", _get_declaration(one))
        elif _is_mapping(one):
            by_name = unfreeze(own) | dict(given.get(name, {}))
            found[name] = jax.tree.map(lambda x, at=f"{place}{name}": _to_array(x, at, {}), by_name)
        else:
            found[name] = _resolve(own, given.get(name, {}), f"{place}{name}.")
    return {name: numbers for name, numbers in found.items() if not isinstance(numbers, dict) or numbers}


def _resolve_number(own: Any, given: Any, place: str, declared: Mapping[str, Any]) -> Any:
    """Return a number as an array, or a schedule of arrays: its own but for what is given."""
    if isinstance(given, Mapping) and isinstance(own, Schedule):
        known = dict(own.items())
        for name in given:
            if name not in known:
                raise unknown_name_error("number", f"{place}.{name}", [f"{place}.{one}" for one in known])
        given = replace(own, **given)
    elif isinstance(given, Mapping) and not given:
        given = own
    return _map_number(lambda name, one, of: _to_array(one, name, of), place, given, declared)


def _to_array(value: Any, name: str, declared: Mapping[str, Any]) -> Any:
    """Return a number as an array; raises OptionError where it is none, or out of its range, which tracers are not."""
    value = value.value if isinstance(value, Fixed) else value
    low, high = declared.get("low", -math.inf), declared.get("high", math.inf)
    needs = "a prior needs a meta-workflow that searches, such as agent=pbt"
    require(not isinstance(value, Prior), name, value, needs)
    if not isinstance(value, Tracer):
        numbers = np.asarray(value)
        real = np.issubdtype(numbers.dtype, np.integer) or jnp.issubdtype(numbers.dtype, np.floating)
        require(real, name, to_printable(value), "must be a number")
        inside = bool(((low <= numbers) & (numbers <= high)).all())
        require(inside, name, to_printable(value), f"must be between {low:g} and {high:g}")
    return jnp.asarray(value, get_dtype(declared))


def abstract_numbers(value: Any) -> dict[str, Any]:
    """Return the numbers of a part as shapes, also where priors stand for them."""

    def get_shapes(name: str, own: Any, declared: Mapping[str, Any]) -> Any:
        del name
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), get_dtype(declared)), own)

    return map_numbers(get_shapes, value)


def _check_numbers(value: Any) -> None:
    """Check what is no array, and make floats of ints where the default is one."""
    for one in filter(_is_number, fields(value)):
        given, low, high = getattr(value, one.name), one.metadata["low"], one.metadata["high"]
        ends = _list_ends(given)
        real = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        require(real and given is not None, one.name, to_printable(given), "must be a number")
        _check_range(given, one.name, low, high)
        if isinstance(one.default, int):
            require(all(float(end).is_integer() for end in ends), one.name, given, "must be a whole number")
        elif isinstance(given, int):
            object.__setattr__(value, one.name, float(given))
    for name in _list_mappings(value):
        _check_mapping(getattr(value, name), name)


def _check_mapping(value: Any, name: str) -> None:
    """Raise OptionError where one of numbers by name is none; lists are arrays."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            _check_mapping(one, f"{name}.{key}")
    elif not hasattr(value, "dtype") and not isinstance(value, Prior | Fixed | Schedule | list | tuple):
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        require(real, name, to_printable(value), "must be a number")


def require_constants(value: Any, but: str) -> None:
    """Check that no number of a part changes with env steps, for one that counts none.

    Args:
        value: a part.
        but: the dotted name of its part that counts its own, whose numbers may.

    Raises:
        OptionError: where one does.
    """
    found = jax.tree_util.tree_leaves_with_path(read_numbers(value), is_leaf=lambda one: isinstance(one, Schedule))
    for path, one in found:
        name = ".".join(step.key for step in path if isinstance(step, jax.tree_util.DictKey))
        changes = isinstance(one, Schedule) and not name.startswith(f"{but}.")
        require(not changes, name, one, f"{type(value).__name__} counts no env steps; only numbers of {but} may change")


def _is_number(one: "Field[Any] | None") -> bool:
    return one is not None and "low" in one.metadata


def _get_declaration(one: "Field[Any] | None") -> dict[str, Any]:
    """Return what is declared of a number; of one of a mapping, which has a field with others, nothing."""
    return {"default": one.default, **one.metadata} if one is not None and _is_number(one) else {}


def _is_mapping(one: "Field[Any] | None") -> bool:
    return one is not None and MAPPING in one.metadata


def get_default(one: "Field[Any]") -> Any:
    """Return the default of a field of a dataclass, made anew where it has a factory; MISSING where it has none."""
    return one.default if one.default_factory is MISSING else one.default_factory()
