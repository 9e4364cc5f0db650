"""Search spaces: the numbers of a member with a prior in place of each that is to be searched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.names import find_by_ending
from evorl.parts import get_dtype, iterate_numbers, map_numbers
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

    part: Any  # of any class that evorl.part made
    search: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.priors  # noqa: B018  which raises

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """By dotted name, in the order of the coordinates."""
        require(not isinstance(self.search, str), "search", self.search, "must be a list of names")
        numbers = iterate_numbers(self.part)
        found = {name: prior for name, *of in numbers if (prior := find_prior(*of)) is not None}
        chosen = {self._find_name(name, found) for name in self.search} or found.keys()
        if not found:
            raise OptionError(f"{type(self.part).__name__}: has nothing to search, as none of its numbers has a prior")
        given = {name for name, value, _ in numbers if isinstance(value, Prior)}
        return {name: prior for name, prior in found.items() if name in chosen or name in given}

    def _find_name(self, name: str, found: Mapping[str, Prior]) -> str | None:
        full = find_by_ending(name, found)
        known = ", ".join(found) or "none"
        require(full is not None, "search", name, f"must be a number with a prior: {known}")
        return full

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
        searched = self.decode_by_name(u)

        def decode_number(name: str, own: Any, declared: Mapping[str, Any]) -> Any:
            dtype = get_dtype(declared)
            if name in searched:
                return searched[name].astype(dtype)
            fixed = own.value if isinstance(own, Fixed) else own
            return jax.tree.map(lambda x: _broadcast(jnp.asarray(x, dtype), u.shape[:-1]), fixed)

        return map_numbers(decode_number, self.part)


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(x, (*shape, *x.shape))
