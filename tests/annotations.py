"""Compare values with the annotations of their classes, which nothing checks as JAX makes them."""

import types
import typing
from dataclasses import fields, is_dataclass

import jax


def find_untrue(value, copies=0, where="state"):
    """Yield the fields of dataclasses in a pytree, of arrays or shapes, that are not what their annotation says.

    With copies, arrays may lead with so many more axes than their annotation, or more, as within populations.
    """
    if is_dataclass(value) and type(value).__module__.startswith("evorl"):
        for field in fields(value):
            of_field, name = getattr(value, field.name), f"{where}.{field.name}"
            if not is_instance(of_field, field.type, copies):
                what = jax.tree.map(lambda x: getattr(x, "shape", x), of_field)
                yield f"{name}: {field.type} is {type(of_field).__name__}, {what}"
            yield from find_untrue(of_field, copies, name)
    elif isinstance(value, dict | tuple | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from find_untrue(child, copies, f"{where}[{key!r}]")


def is_instance(value, hint, copies):
    """Return whether a value is of a type, as far as it says."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(is_instance(value, one, copies) for one in args)
    if hasattr(hint, "dtypes") and hasattr(hint, "dim_str"):
        return is_array(value, hint, copies)
    if origin is dict:
        return isinstance(value, dict) and all(is_instance(one, args[1], copies) for one in value.values())
    if origin is tuple:
        return isinstance(value, tuple) and (args[1:] == (...,) or len(args) == len(value))
    if isinstance(origin, type):
        return isinstance(value, origin)
    if hint is jax.Array:
        return hasattr(value, "dtype")
    known = isinstance(hint, type) and hint.__module__.startswith(("evorl", "builtins"))
    return isinstance(value, hint) if known else True


def is_array(value, hint, copies):
    """Return whether an array, or its shape, is of a kind and has the axes that jaxtyping names."""
    if not hasattr(value, "dtype"):
        return False
    kinds, dims = hint.dtypes, hint.dim_str.split()
    named = copies + sum(not dim.startswith(("*", "...")) for dim in dims)
    exact = not copies and all(not dim.startswith(("*", "...")) for dim in dims)
    of_kind = not isinstance(kinds, list | tuple) or str(value.dtype) in kinds
    return of_kind and (value.ndim == named if exact else value.ndim >= named)
