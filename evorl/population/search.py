"""Search spaces: hyperparameters with a prior in place of each number that is to be searched."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.errors import OptionError
from evorl.hyperparameters import check_hyperparams, flatten_hyperparams, replace_numbers
from evorl.priors import Choice, Integer, LogUniform, Neg, OneMinus, PowerOfTwo, Uniform
from evorl.types import Hyperparams, Prior

__all__ = [
    "Choice",
    "Integer",
    "LogUniform",
    "Neg",
    "OneMinus",
    "PowerOfTwo",
    "PriorSpace",
    "Uniform",
]


@dataclass(frozen=True)
class PriorSpace:
    """Hyperparameters with priors among their numbers; d of them are searched, as a point in the unit cube [d]."""

    hyperparams: Hyperparams

    def __post_init__(self) -> None:
        check_hyperparams(self.hyperparams, "space.", searched=True)
        if not self.priors:
            raise OptionError(
                f"space={type(self.hyperparams).__name__}: names nothing to search, as no number in it is a prior"
            )

    @property
    def priors(self) -> dict[str, Prior]:
        """By dotted name, in the order of the coordinates."""
        return {
            name: value
            for name, (value, _, _) in flatten_hyperparams(self.hyperparams).items()
            if isinstance(value, Prior)
        }

    @property
    def size(self) -> int:
        return len(self.priors)

    @property
    def e_folds(self) -> Float[Array, " d"]:
        """How wide each prior is where it is logarithmic, 0 where it is linear."""
        return jnp.asarray([prior.e_folds for prior in self.priors.values()], jnp.float32)

    def decode_by_name(self, u: Float[Array, "*shape d"]) -> dict[str, Float[Array, "*shape"]]:
        """What is searched, by dotted name."""
        return {name: prior.decode(u[..., i]) for i, (name, prior) in enumerate(self.priors.items())}

    def decode(self, u: Float[Array, "*shape d"]) -> Hyperparams:
        """All hyperparameters, leaves [*shape]; those that are not searched are the same everywhere."""
        fixed = {
            name: value
            for name, (value, _, _) in flatten_hyperparams(self.hyperparams).items()
            if name not in self.priors
        }
        numbers = {name: jnp.broadcast_to(value, u.shape[:-1]) for name, value in fixed.items()} | self.decode_by_name(
            u
        )
        return replace_numbers(self.hyperparams, numbers)
