"""Parts, the components of a training: frozen dataclasses whose hyperparameters are leaves of a state.

A hyperparameter is declared with `number`. Since it is a leaf of the state, any workflow can be vmapped over
it.
"""

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

# as configured: a float, an int, a prior, Fixed or a schedule; in a bound part: an array or a tracer
Number: TypeAlias = Any
T = TypeVar("T")
MARK = "__evorl_part__"
SKELETON = "__evorl_skeleton__"
MAPPING = "numbers by name"  # key in the metadata of a field
OF_STEPS = {"default": math.nan, "low": 0.0, "high": math.inf, "about": "env steps of a schedule", "prior": None}


def number_metadata(default: Any, low: float, high: float, about: str, prior: Prior | None) -> dict[str, Any]:
    """Return the declaration of a hyperparameter; raise OptionError if default or prior are out of the range."""
    require(low < high, "high", f"{high:g}", f"must be above low, {low:g}")
    for name, value in (("default", default), ("prior", prior)):
        _check_range(value, name, low, high)
    return {"low": low, "high": high, "about": about, "prior": prior}


def _check_range(value: Any, name: str, low: float, high: float) -> None:
    """Raise OptionError if a number, or an end of a prior or schedule in its place, is out of its range."""
    for end in _list_ends(value):
        require(low <= end <= high, name, to_printable(value), f"must be between {low:g} and {high:g}")


def _list_ends(value: Any) -> tuple[Any, ...]:
    """Return the values that bound a number: itself, the bounds of a prior, or the ends of a schedule.

    There are none for arrays.
    """
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
    """Declare a hyperparameter as a field of a part, which is set by keyword, as in `OpenES(64, std=0.1)`.

    Args:
        default: Default value, a float or an int, which also sets the type, or a schedule. Use 0 or inf to
            switch something off, never None.
        low: Lowest allowed value.
        high: Highest allowed value.
        about: Description, for the docstring and for listings of options.
        prior: Search space of the hyperparameter; None if it is not searched by default.

    Returns:
        The dataclass field.

    Raises:
        OptionError: If default or prior are out of the range.
    """
    return field(default=default, kw_only=True, metadata=number_metadata(default, low, high, about, prior))


def number_mapping() -> Any:
    """Declare a field of hyperparameters by name, for a part that knows them only when it is created.

    The part must convert the given mapping to a FrozenDict, so that the part has a hash.
    """
    return field(default_factory=FrozenDict, kw_only=True, metadata={MAPPING: True})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """Make a class a part: a frozen dataclass whose fields are hyperparameters, other parts, or static.

    Hyperparameters are range-checked when a part is created, unless they are arrays. A part that holds arrays
    is bound to a state. It has no hash, so that no program is compiled for their values.

    Describe the fields in `Args:` of the docstring. The descriptions of inherited fields and of
    hyperparameters (their `about`) are added to it automatically.

    Args:
        cls: Class with annotated fields. Fields declared with `number` are hyperparameters.

    Returns:
        The class as a frozen dataclass. It raises OptionError if a part is created with a hyperparameter that
        is not a number or is out of its range.
    """
    plain: Any = cls
    own_check = plain.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        _check_numbers(self)
        if own_check is not None:
            own_check(self)

    if own_check is not None or not is_part(plain):  # else the base class already checks the numbers of this class
        plain.__post_init__ = check
    documented = plain.__doc__ is not None  # else dataclass sets it to the signature
    made = dataclass(frozen=True)(plain)
    hash_fields = made.__hash__

    def hash_unbound(self: Any) -> int:
        of_numbers = (one.name for one in fields(self) if _is_number(one) or _is_mapping(one))
        bound = [name for name in of_numbers if _has_arrays(getattr(self, name))]
        if bound:
            raise TypeError(
                f"{plain.__name__} is bound to hyperparameters of a state ({', '.join(bound)}) and has no hash; "
                "compile with its skeleton, the component before bind"
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
    """Return whether a value is a part or a class of parts."""
    return hasattr(value, MARK)


def bind(skeleton: T, numbers: Numbers, env_steps: Any = 0) -> T:
    """Return a part with the hyperparameters of a state in place of its own.

    Args:
        skeleton: A part. A value that is not a part is returned unchanged.
        numbers: Hyperparameters nested by field name, in the form of `read_numbers`.
        env_steps: Number of env steps taken, [], at which schedules are evaluated; None to keep schedules.

    Raises:
        OptionError: If the names do not match the hyperparameters of the part.
    """
    return _bind(skeleton, numbers, "numbers", env_steps)


def _bind(skeleton: Any, numbers: Any, place: str, env_steps: Any) -> Any:
    if not is_part(skeleton) and not isinstance(skeleton, Mapping | tuple):
        return skeleton
    free = _list_mappings(skeleton)
    names = read_numbers(skeleton).keys() - free
    if numbers.keys() - free != names:
        wanted = f"must be the hyperparameters of {type(skeleton).__name__}: {', '.join(sorted(names)) or 'none'}"
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
    """Return a hyperparameter, or hyperparameters by name, with schedules replaced by their values at env_steps."""

    def evaluate(one: Any) -> Any:
        if env_steps is None or not isinstance(one, Schedule):
            return one
        found = one.value(env_steps)
        return jnp.round(found).astype(jnp.int32) if get_dtype(declared) is jnp.int32 else found

    return jax.tree.map(evaluate, value, is_leaf=lambda one: isinstance(one, Schedule))


def _iterate_fields(value: Any) -> Iterator[tuple[str, "Field[Any] | None", Any]]:
    """Yield the name, the field and the value of each field of a part, or element of a mapping or tuple.

    The field is None for elements of a mapping or tuple.
    """
    if is_part(value):
        yield from ((one.name, one, getattr(value, one.name)) for one in fields(value))
    elif isinstance(value, Mapping):
        yield from ((name, None, one) for name, one in value.items())
    elif isinstance(value, tuple):
        yield from ((str(i), None, one) for i, one in enumerate(value))


def _list_mappings(value: Any) -> set[str]:
    """Return the names of the fields of a part declared with `number_mapping`, which accept additional names."""
    return {one.name for one in fields(value) if _is_mapping(one)} if is_part(value) else set()


def replace_unchecked(skeleton: T, changes: Mapping[str, Any]) -> T:
    """Return a part with some fields replaced, without the checks on creation, which may not run in a trace.

    Args:
        skeleton: A part, bound or not.
        changes: New values of fields, by name.
    """
    derived = {name for name in vars(skeleton) if isinstance(getattr(type(skeleton), name, None), cached_property)}
    copy = object.__new__(type(skeleton))
    kept = {name: value for name, value in vars(skeleton).items() if name not in derived}
    copy.__dict__.update({SKELETON: get_skeleton(skeleton)} | kept | dict(changes))
    return copy


def is_bound(value: Any) -> bool:
    """Return whether a value is a bound part, or is no part and thus has no hyperparameters.

    A part that `dataclasses.replace` made from a bound part counts as bound, since its hyperparameters are
    arrays.
    """
    if not is_part(value) or SKELETON in vars(value):
        return True
    return any(isinstance(number, jax.Array) for number in jax.tree.leaves(read_numbers(value)))


def get_skeleton(value: T) -> T:
    """Return the part from which a bound part was made, which has a hash; return any other part unchanged."""
    return vars(value).get(SKELETON, value)


def read_numbers(value: Any) -> dict[str, Any]:
    """Return the hyperparameters of a part as given, nested by field name; parts without any are omitted.

    The hyperparameters of the members of a population are not included, since they are in the states of the
    members.
    """
    return map_numbers(lambda name, own, declared: own, value)


def get_number(numbers: Numbers, name: str) -> Any:
    """Return one of nested hyperparameters, or of the numbers of a schedule among them, by its dotted name."""
    found: Any = numbers
    for key in name.split("."):
        found = getattr(found, key) if isinstance(found, Schedule) else found[key]
    return found


def map_numbers(change: Callable[[str, Any, Mapping[str, Any]], Any], value: Any, prefix: str = "") -> dict[str, Any]:
    """Apply a function to each hyperparameter of a part, and return the results nested by field name.

    Args:
        change: Function of the dotted name of a hyperparameter, its value, and its declaration, which has the
            keys default, low, high, about and prior; it is empty within a `number_mapping`. One that the
            attribute `unused_numbers` of a part names has no prior, and the key unused says why.
        value: A part.
        prefix: Prefix of the dotted names.
    """
    return _map_numbers(change, value, prefix, {})


def _map_numbers(
    change: Callable[[str, Any, Mapping[str, Any]], Any], value: Any, prefix: str, unused: Mapping[str, str]
) -> dict[str, Any]:
    own_unused: Mapping[str, str] = getattr(value, "unused_numbers", {})
    unused = {**unused, **{f"{prefix}{name}": why for name, why in own_unused.items()}}
    found = {}
    for name, one, own in _iterate_fields(value):
        place = f"{prefix}{name}"
        if _is_number(one):
            declared = _get_declaration(one)
            if place in unused:
                declared = {**declared, "prior": None, "unused": unused[place]}
            found[name] = _map_number(change, place, own, declared)
        elif _is_mapping(one):
            by_name = unfreeze(own).items()
            found[name] = {key: _map_number(change, f"{place}.{key}", number, {}) for key, number in by_name}
        else:
            found[name] = _map_numbers(change, own, f"{place}.", unused)
    return {name: numbers for name, numbers in found.items() if not isinstance(numbers, dict) or numbers}


def _map_number(
    change: Callable[[str, Any, Mapping[str, Any]], Any], place: str, own: Any, declared: Mapping[str, Any]
) -> Any:
    """Apply a function to a hyperparameter or, if it is a schedule, to each number of the schedule."""
    if not isinstance(own, Schedule):
        return change(place, own, declared)
    at_start = {} if isinstance(declared.get("default"), Schedule) else {"start": declared}
    of_end = {**declared, "default": math.nan, "prior": None}
    of = {name: at_start.get(name, of_end) if name in own.ends else OF_STEPS for name, _ in own.items()}
    return replace(own, **{name: change(f"{place}.{name}", one, of[name]) for name, one in own.items()})


def iterate_numbers(value: Any) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return the name, value and declaration of every hyperparameter of a part, in the order of fields.

    They include those of parts within the part, in the form in which `map_numbers` gives them.
    """
    found: list[tuple[str, Any, Mapping[str, Any]]] = []
    map_numbers(lambda *of: found.append(of), value)
    return found


def check_unused_numbers(value: Any, place: str) -> None:
    """Raise OptionError if a hyperparameter that has no effect in a part has another value than its default.

    Args:
        value: A part, or a workflow over a population of parts.
        place: Name of the part, for error messages.
    """
    for name, own, declared in iterate_numbers(value):
        if "unused" in declared and not _is_default(own, declared):
            raise OptionError(f"{place}.{name}={own}: has no effect with {declared['unused']}")
    if hasattr(value, "population"):
        check_unused_numbers(value.population.inner, f"{place}.population.inner")


def _is_default(own: Any, declared: Mapping[str, Any]) -> bool:
    own = own.value if isinstance(own, Fixed) else own
    return isinstance(own, jax.Array) or (np.ndim(own) == 0 and own == declared.get("default"))


def get_dtype(declared: Mapping[str, Any]) -> Any:
    """Return the dtype of a hyperparameter in a state: int32 if its declared default is an int, else float32."""
    return jnp.int32 if isinstance(declared.get("default"), int) else jnp.float32


def resolve_numbers(value: Any, numbers: Numbers | None = None, place: str = "numbers") -> dict[str, Any]:
    """Return the hyperparameters of a part as leaves of a state, with float32 or, for int defaults, int32 arrays.

    Args:
        value: A part. A value that is not a part has no hyperparameters.
        numbers: Hyperparameters that differ from those of the part, nested by field name. They may be arrays
            with additional leading axes.
        place: Name of the part, for error messages.

    Raises:
        OptionError: If a hyperparameter is not a number, is out of its range, is a prior or belongs to no
            field; or if JAX computes in 64 bits, for which states are not supported.
    """
    tree.require_32_bits()
    return _resolve(value, numbers or {}, f"{place}.")


def _resolve(value: Any, given: Any, place: str) -> dict[str, Any]:
    require(
        isinstance(given, Mapping),
        place.rstrip("."),
        to_printable(given),
        "must be a mapping from field names to values",
    )
    names, found = read_numbers(value).keys() | _list_mappings(value), {}
    for name in given:
        if name not in names:
            raise unknown_name_error("hyperparameter", f"{place}{name}", [f"{place}{one}" for one in sorted(names)])
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
    """Return a hyperparameter as an array, or a schedule of arrays, in which given values replace its own."""
    if isinstance(given, Mapping) and isinstance(own, Schedule):
        known = dict(own.items())
        for name in given:
            if name not in known:
                raise unknown_name_error("hyperparameter", f"{place}.{name}", [f"{place}.{one}" for one in known])
        given = replace(own, **given)
    elif isinstance(given, Mapping) and not given:
        given = own
    return _map_number(lambda name, one, of: _to_array(one, name, of), place, given, declared)


def _to_array(value: Any, name: str, declared: Mapping[str, Any]) -> Any:
    """Return a number as an array; raise OptionError if it is invalid or, except for tracers, out of its range."""
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
        whole = get_dtype(declared) is not jnp.int32 or bool((numbers % 1 == 0).all())
        require(whole, name, to_printable(value), "must be a whole number")
    dtype = get_dtype(declared)
    return jnp.asarray(value if isinstance(value, jax.Array) else np.asarray(value, dtype), dtype)


def abstract_numbers(value: Any) -> dict[str, Any]:
    """Return the shapes and dtypes of the hyperparameters of a part, which may be priors."""

    def get_shapes(name: str, own: Any, declared: Mapping[str, Any]) -> Any:
        del name
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), get_dtype(declared)), own)

    return map_numbers(get_shapes, value)


def _check_numbers(value: Any) -> None:
    """Check all hyperparameters of a part except arrays, and convert ints to floats if the default is a float."""
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
    """Raise OptionError if a value in a mapping of hyperparameters is not a number; lists count as arrays."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            _check_mapping(one, f"{name}.{key}")
    elif not hasattr(value, "dtype") and not isinstance(value, Prior | Fixed | Schedule | list | tuple):
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        require(real, name, to_printable(value), "must be a number")


def require_constants(value: Any, but: str) -> None:
    """Require that no hyperparameter of a part is a schedule, for a part that does not count env steps.

    Args:
        value: A part.
        but: Dotted name of the inner part that counts its own env steps, whose hyperparameters may be
            schedules.

    Raises:
        OptionError: If another hyperparameter is a schedule.
    """
    found = jax.tree_util.tree_leaves_with_path(read_numbers(value), is_leaf=lambda one: isinstance(one, Schedule))
    for path, one in found:
        name = ".".join(step.key for step in path if isinstance(step, jax.tree_util.DictKey))
        changes = isinstance(one, Schedule) and not name.startswith(f"{but}.")
        require(
            not changes,
            name,
            one,
            f"must not be a schedule: {type(value).__name__} counts no env steps; only {but} may have schedules",
        )


def _is_number(one: "Field[Any] | None") -> bool:
    return one is not None and "low" in one.metadata


def _get_declaration(one: "Field[Any] | None") -> dict[str, Any]:
    """Return the declaration of a hyperparameter; it is empty for a `number_mapping` and for other fields."""
    return {"default": one.default, **one.metadata} if one is not None and _is_number(one) else {}


def _is_mapping(one: "Field[Any] | None") -> bool:
    return one is not None and MAPPING in one.metadata


def get_default(one: "Field[Any]") -> Any:
    """Return the default of a dataclass field, a new object if it has a factory; MISSING if it has none."""
    return one.default if one.default_factory is MISSING else one.default_factory()
