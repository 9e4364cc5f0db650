"""Search spaces: the numbers of a member with a prior in place of each that is to be searched."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.names import find_by_ending
from evorl.parts import iterate_numbers
from evorl.priors import Choice, Fixed, Integer, LogUniform, Neg, OneMinus, PowerOfTwo, Uniform
from evorl.types import Numbers, Prior

__all__ = [
    "Choice",
    "Fixed",
    "Integer",
    "LogUniform",
    "Neg",
    "OneMinus",
    "PowerOfTwo",
    "PriorSpace",
    "Uniform",
]


def find_prior(value: Any, declared: Mapping[str, Any]) -> Prior | None:
    """Return by which prior a number is searched: that in its place, or the declared one where it has its default.

    Args:
        value: the number as a part has it.
        declared: what is declared of it, as `iterate_numbers` gives it.
    """
    if isinstance(value, Prior):
        return value
    at_default = not isinstance(value, Fixed) and not hasattr(value, "dtype") and value == declared.get("default")
    return declared.get("prior") if at_default else None


@dataclass(frozen=True)
class PriorSpace:
    """The numbers of a part, d of which are searched, as a point in the unit cube [d].

    Args:
        part: whose numbers have priors; those of a population within it are not among them.
        search: which of those that have a prior by declaration are searched, by name or its ending; where empty all.
            A number that is a prior itself always is.

    Raises:
        OptionError: where there are none, or a name is of none.
    """

    part: Any
    search: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        declared = self._find_priors()
        for name in self.search:
            known = ", ".join(declared) or "none"
            require(
                find_by_ending(name, declared) is not None, "search", name, f"must be a number with a prior: {known}"
            )
        if not declared:
            raise OptionError(f"{type(self.part).__name__}: has nothing to search, as none of its numbers has a prior")

    def _find_priors(self) -> dict[str, Prior]:
        found = {name: find_prior(*of) for name, *of in iterate_numbers(self.part)}
        return {name: prior for name, prior in found.items() if prior is not None}

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """By dotted name, in the order of the coordinates."""
        found = self._find_priors()
        chosen = {find_by_ending(name, found) for name in self.search} or found.keys()
        given = {name for name, value, _ in iterate_numbers(self.part) if isinstance(value, Prior)}
        return {name: prior for name, prior in found.items() if name in chosen or name in given}

    @property
    def size(self) -> int:
        return len(self.priors)

    @property
    def e_folds(self) -> Float[Array, " d"]:
        """How wide each prior is where it is logarithmic, 0 where it is linear."""
        return jnp.asarray([prior.e_folds for prior in self.priors.values()], jnp.float32)

    def decode_by_name(self, u: Float[Array, "*shape d"]) -> dict[str, Float[Array, "*shape"]]:
        """Return what is searched, by dotted name."""
        return {name: prior.decode(u[..., i]) for i, (name, prior) in enumerate(self.priors.items())}

    def decode(self, u: Float[Array, "*shape d"]) -> Numbers:
        """Return all numbers, leaves [*shape]; those that are not searched are the same everywhere."""
        found: dict[str, Any] = {}
        searched = self.decode_by_name(u)
        for name, value, declared in iterate_numbers(self.part):
            *outer, last = name.split(".")
            node = found
            for one in outer:
                node = node.setdefault(one, {})
            dtype = jnp.int32 if isinstance(declared.get("default"), int) else jnp.float32
            own = value.value if isinstance(value, Fixed) else value
            node[last] = (
                searched[name].astype(dtype)
                if name in searched
                else jax.tree.map(lambda x, dtype=dtype: _broadcast(jnp.asarray(x, dtype), u.shape[:-1]), own)
            )
        return found


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(x, (*shape, *x.shape))
