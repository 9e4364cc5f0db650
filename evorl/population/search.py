"""Search spaces: hyperparameters of a component, some of which have priors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError, require
from evorl.names import find_by_ending
from evorl.parts import get_dtype, get_number, iterate_numbers, map_numbers
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
    """Return the prior by which a hyperparameter is searched, or None if it is not searched.

    It is the value itself if that is a prior, and the declared prior if the value is the default.

    Args:
        value: Value of the hyperparameter in its component.
        declared: Declaration of the hyperparameter, as `iterate_numbers` gives it.
    """
    if isinstance(value, Prior):
        return value
    at_default = not isinstance(value, Fixed) and not hasattr(value, "dtype") and value == declared.get("default")
    return declared.get("prior") if at_default else None


@dataclass(frozen=True)
class PriorSpace:
    """Search space of a component: maps points of the unit cube [d] to hyperparameters.

    Args:
        part: Component whose hyperparameters have priors, of any class decorated with `evorl.part`.
            Hyperparameters of a population within it are not included.
        search: Names, or endings of names, of the hyperparameters with a declared prior that are searched;
            empty for all. A hyperparameter whose value is a prior is always searched.

    Raises:
        OptionError: If there is no hyperparameter to search, or if a name in `search` matches none.
    """

    part: Any
    search: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.priors  # noqa: B018  to raise its errors

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """Return the prior of each searched hyperparameter by dotted name, in the order of the coordinates."""
        require(not isinstance(self.search, str), "search", self.search, "must be a list of names")
        numbers = iterate_numbers(self.part)
        found = {name: prior for name, *of in numbers if (prior := find_prior(*of)) is not None}
        chosen = {self._find_name(name, found) for name in self.search} or found.keys()
        if not found:
            raise OptionError(
                f"{type(self.part).__name__}: has nothing to search, because no hyperparameter has a prior"
            )
        given = {name for name, value, _ in numbers if isinstance(value, Prior)}
        return {name: prior for name, prior in found.items() if name in chosen or name in given}

    def _find_name(self, name: str, found: Mapping[str, Prior]) -> str | None:
        full = find_by_ending(name, found)
        known = ", ".join(found) or "none"
        require(full is not None, "search", name, f"must be a hyperparameter with a prior: {known}")
        return full

    @property
    def size(self) -> int:
        return len(self.priors)

    @property
    def e_folds(self) -> Float[Array, " d"]:
        """Return the widths of the priors in natural-log units, shape [d]; 0 for a linear prior."""
        return jnp.asarray([prior.e_folds for prior in self.priors.values()], jnp.float32)

    def _round(self, name: str, x: Array) -> Array:
        """Return values of a hyperparameter, rounded if it is an integer, which may have a continuous prior."""
        return jnp.round(x) if name in self._integers else x

    @cached_property
    def _integers(self) -> set[str]:
        return {name for name, _, declared in iterate_numbers(self.part) if get_dtype(declared) is jnp.int32}

    def decode_by_name(self, u: Float[Array, "*shape d"]) -> dict[str, Float[Array, "*shape"]]:
        """Return the searched hyperparameters at points of the unit cube, by dotted name.

        Args:
            u: Points in the unit cube, shape [*shape, d].

        Returns:
            Values by name, each of shape [*shape].
        """
        return {name: self._round(name, prior.decode(u[..., i])) for i, (name, prior) in enumerate(self.priors.items())}

    def decode(self, u: Float[Array, "*shape d"], others: Numbers | None = None) -> Numbers:
        """Return all hyperparameters at points of the unit cube.

        Args:
            u: Points in the unit cube, shape [*shape, d].
            others: Hyperparameters, leaves [*shape, ...], of which those that are not searched are returned;
                None for the component's own, which are the same at each point.

        Returns:
            Hyperparameters of the component, leaves [*shape, ...].
        """
        searched = self.decode_by_name(u)

        def decode_number(name: str, own: Any, declared: Mapping[str, Any]) -> Any:
            dtype = get_dtype(declared)
            if name in searched:
                return searched[name].astype(dtype)
            if others is not None:
                return get_number(others, name)
            fixed = own.value if isinstance(own, Fixed) else own
            return jax.tree.map(lambda x: _broadcast(jnp.asarray(x, dtype), u.shape[:-1]), fixed)

        return map_numbers(decode_number, self.part)


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(x, (*shape, *x.shape))
