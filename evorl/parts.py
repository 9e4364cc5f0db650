"""Parts: frozen dataclasses whose numbers are leaves of a state, so that any workflow can be vmapped over them."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import numpy as np
from flax import struct
from flax.core import FrozenDict, unfreeze

from evorl.errors import OptionError, require, to_printable
from evorl.types import Prior, Scheduled

Number: TypeAlias = Any  # a float or int, or a prior, as configured; an array, or a tracer, in a bound part
T = TypeVar("T")
MARK = "__evorl_part__"
SKELETON = "__evorl_skeleton__"
MAPPING = "numbers by name"  # in the metadata of a field
DEFAULT = "whose numbers are the default's"  # in the metadata of a field without a default, a class of parts
WHOLE = "whose numbers are those of the part"  # in the metadata of a field, which holds a part, or several by name


def number_metadata(default: float, low: float, high: float, about: str, prior: Prior | None) -> dict[str, Any]:
    """Return what is known of a number; raises OptionError where default or prior are out of the range."""
    require(low < high, "high", f"{high:g}", f"must be above low, {low:g}")
    require(low <= default <= high, "default", f"{default:g}", f"must be between {low:g} and {high:g}")
    for end in prior.bounds if prior is not None else ():
        require(low <= end <= high, "prior", prior, f"must be between {low:g} and {high:g}")
    return {"low": low, "high": high, "about": about, "prior": prior}


def number(
    default: float,
    low: float = -math.inf,
    high: float = math.inf,
    about: str = "",
    prior: Prior | None = None,
) -> Any:
    """Declare a number of a part, which is given by its name: as in `OpenES(64, std=0.1)`.

    Args:
        default: a float or an int; the number is of this type. Off is 0 or inf, never None.
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
    made = dataclass(frozen=True)(plain)
    hash_fields = made.__hash__

    def hash_unbound(self: Any) -> int:
        bound = [one.name for one in filter(holds_numbers, fields(self)) if _has_arrays(getattr(self, one.name))]
        if bound:
            raise TypeError(
                f"{plain.__name__} is bound to numbers of a state ({', '.join(bound)}), for which nothing may be "
                "compiled; its skeleton, the part before bind, is what has a hash"
            )
        return hash_fields(self)

    made.__hash__ = hash_unbound
    setattr(made, MARK, True)
    return made


def _has_arrays(value: Any) -> bool:
    return any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(value))


def is_part(value: Any) -> bool:
    """Return whether something is a part, or a class of parts."""
    return hasattr(value, MARK)


def holds_numbers(one: "Field[Any]") -> bool:
    """Return whether a field of a part is a number, or numbers by name."""
    return _is_number(one) or MAPPING in one.metadata


def bind(skeleton: T, numbers: Any, env_steps: Any = None) -> T:
    """Return a part with the numbers of a state in place of its own.

    Args:
        skeleton: a part; what is none stays as it is.
        numbers: by field name, a mapping or an object with attributes, those of other parts nested.
        env_steps: [] how many have been taken, for parts with a schedule; None where schedules stay out.

    Raises:
        OptionError: where they are not the numbers of this part.
    """
    return _bind(skeleton, numbers, "numbers", env_steps)


def _bind(skeleton: Any, numbers: Any, place: str, env_steps: Any) -> Any:
    if isinstance(skeleton, Mapping):
        return {name: _bind(one, numbers[name], f"{place}.{name}", env_steps) for name, one in skeleton.items()}
    if not is_part(skeleton):
        return skeleton
    whole = _find_field(skeleton, WHOLE)
    if whole is not None:
        return replace_unchecked(
            skeleton, {whole.name: _bind(getattr(skeleton, whole.name), numbers, place, env_steps)}
        )
    given = _by_name(numbers)
    mapping = _find_field(skeleton, MAPPING)
    if mapping is not None:
        return replace_unchecked(skeleton, {mapping.name: given})
    cls = numbers_class(type(skeleton))
    names = {one.name for one in fields(cls)}
    if given.keys() != names:
        wanted = f"must be {cls.__name__}, of {type(skeleton).__name__}, with {', '.join(sorted(names)) or 'none'}"
        raise OptionError(f"{place}={type(numbers).__name__}: {wanted}")
    of_part = {one.name: one for one in fields(skeleton)}
    bound = {
        name: given[name]
        if _is_number(of_part[name])
        else _bind(getattr(skeleton, name), given[name], f"{place}.{name}", env_steps)
        for name in names
    }
    made = replace_unchecked(skeleton, bound)
    if env_steps is not None and isinstance(made, Scheduled):
        return replace_unchecked(made.apply_schedule(env_steps), {SKELETON: get_skeleton(skeleton)})
    return made


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


def get_skeleton(value: T) -> T:
    """Return the part that a bound one was made of, which has a hash; any other as it is."""
    return vars(value).get(SKELETON, value)


def abstract_numbers(value: Any) -> Any:
    """Return the numbers of a part as shapes, also where priors stand for them."""
    shape = lambda x: jax.ShapeDtypeStruct((), np.int32 if isinstance(x, int) else np.float32)  # noqa: E731
    return jax.tree.map(shape, read_numbers(value), is_leaf=lambda x: isinstance(x, Prior))


def read_numbers(value: Any) -> Any:
    """Return the numbers of a part, nested by field name: of its `numbers_class`, or a mapping where it has one.

    Raises:
        OptionError: where a field holds a part whose class has none there by default.
    """
    if isinstance(value, Mapping):
        return {name: read_numbers(one) for name, one in sorted(value.items())}
    if not is_part(value):
        return {}
    whole = _find_field(value, WHOLE)
    if whole is not None:
        return read_numbers(getattr(value, whole.name))
    mapping = _find_field(value, MAPPING)
    if mapping is not None:
        return unfreeze(getattr(value, mapping.name))
    cls, found = numbers_class(type(value)), {}
    names = {one.name for one in fields(cls)}
    for one in fields(value):
        own = getattr(value, one.name)
        if one.name in names:
            found[one.name] = own if _is_number(one) else read_numbers(own)
        elif is_part(own):
            raise OptionError(f"{one.name}: {type(value).__name__} must have a part as the default of this field")
    return cls(**found)


def require_given_once(skeleton: Any, numbers: Any, prefix: str = "") -> None:
    """Refuse numbers of a state that differ from what a part was made with, where that is no default.

    Args:
        skeleton: a part; of what is none there are no numbers.
        numbers: as for `bind`.
        prefix: of the names, for errors.

    Raises:
        OptionError: of the first that is given twice.
    """
    if isinstance(skeleton, Mapping):
        for name, one in skeleton.items():
            if is_part(one):
                require_given_once(one, numbers[name], f"{prefix}{name}.")
        return
    if not is_part(skeleton):
        return
    whole = _find_field(skeleton, WHOLE)
    if whole is not None:
        require_given_once(getattr(skeleton, whole.name), numbers, f"{prefix}{whole.name}.")
        return
    given = _by_name(numbers)
    mapping = _find_field(skeleton, MAPPING)
    if mapping is not None:
        own = unfreeze(getattr(skeleton, mapping.name))
        same = not own or _equals(own, given)
        require(same, f"{prefix}{mapping.name}", to_printable(own), f"is given twice, once as {to_printable(given)}")
        return
    for one in fields(skeleton):
        own, name = getattr(skeleton, one.name), f"{prefix}{one.name}"
        if not _is_number(one):
            if own != get_default(one):  # else it is replaced
                require_given_once(own, given.get(one.name, {}), f"{name}.")
        elif own != one.default and one.name in given:  # else they are of another part, which bind refuses
            same = _equals(own, given[one.name])
            require(same, name, to_printable(own), f"is given twice, once as {to_printable(given[one.name])}")


def _equals(one: Any, other: Any) -> bool:
    same = jax.tree.structure(one) == jax.tree.structure(other)
    return same and all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@cache
def numbers_class(cls: type[Any]) -> Any:
    """Return the dataclass, a pytree, of the numbers of a class of parts, whose name ends in Hyperparams."""
    namespace: dict[str, Any] = {"__annotations__": {}, "__module__": cls.__module__, "__doc__": f"Of {cls.__name__}."}
    for one in fields(cls):
        if _is_number(one):
            namespace[one.name] = struct.field(default=one.default, metadata=dict(one.metadata))
        elif is_part(_get_default_part(one)):
            namespace[one.name] = struct.field(default_factory=lambda one=one: _read_default_numbers(one))
        else:
            continue
        namespace["__annotations__"][one.name] = Any
    return struct.dataclass(type(f"{cls.__name__}Hyperparams", (), namespace))


def _check_numbers(value: Any) -> None:
    """Check what is no array, and make floats of ints where the default is one."""
    for one in filter(_is_number, fields(value)):
        given, low, high = getattr(value, one.name), one.metadata["low"], one.metadata["high"]
        if hasattr(given, "dtype"):
            continue
        real = isinstance(given, int | float) and not isinstance(given, bool)
        require(real or isinstance(given, Prior), one.name, to_printable(given), "must be a number")
        for end in given.bounds if isinstance(given, Prior) else (given,):
            require(low <= end <= high, one.name, to_printable(given), f"must be between {low:g} and {high:g}")
        if isinstance(one.default, int):
            require(isinstance(given, Prior) or float(given).is_integer(), one.name, given, "must be a whole number")
        elif isinstance(given, int):
            object.__setattr__(value, one.name, float(given))


def _is_number(one: "Field[Any]") -> bool:
    return "low" in one.metadata


def get_default(one: "Field[Any]") -> Any:
    """Return the default of a field of a dataclass, made anew where it has a factory; MISSING where it has none."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def _get_default_part(one: "Field[Any]") -> Any:
    return one.metadata[DEFAULT]() if DEFAULT in one.metadata else get_default(one)


def _read_default_numbers(one: "Field[Any]") -> Any:
    found = read_numbers(_get_default_part(one))
    return found if jax.tree.leaves(found) else {}  # of a part without numbers no configuration names a class


def _find_field(value: Any, mark: str) -> "Field[Any] | None":
    return next((one for one in fields(value) if mark in one.metadata), None)


def _by_name(numbers: Any) -> dict[str, Any]:
    if isinstance(numbers, Mapping):
        return dict(numbers)
    return {one.name: getattr(numbers, one.name) for one in fields(numbers)} if is_dataclass(numbers) else {}
