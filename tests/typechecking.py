"""The checker that jaxtyping runs on every annotation of evorl: int passes for float, as everywhere in Python."""

import functools

import beartype

CHECKER = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def check(function):
    """Check a function's annotations as it is called, but those of fields of pytrees.

    JAX makes pytrees anew around whatever it traces, maps or shapes.
    """
    checked = CHECKER(function)
    if function.__name__ != "__init__":
        return checked

    @functools.wraps(function)
    def init(self, *args, **kwargs):
        return (function if hasattr(self, "_flax_dataclass") else checked)(self, *args, **kwargs)

    return init
