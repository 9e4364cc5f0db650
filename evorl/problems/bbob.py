"""Functions of the black-box optimization benchmark (BBOB), as implemented in evosax."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Array, Float

from evorl import mesh
from evorl.errors import require_int, unknown_name_error
from evorl.problems.box import sample_uniform
from evorl.types import Key


@dataclass(frozen=True)
class BBOB:
    """Function of the black-box optimization benchmark (BBOB), without noise and negated: the maximum is 0.

    Args:
        name: Name of the function in evosax.problems.bbob_fns.
        size: Number of parameters, at least 2.
        seed: Seed of the position of the optimum and of the rotations.

    Source: Hansen et al. 2009, Real-parameter black-box optimization benchmarking, RR-6829.
    """

    name: str = "sphere"
    size: int = 10
    seed: int = 0

    bounds = (-5.0, 5.0)

    def __post_init__(self) -> None:
        from evosax.problems import bbob_fns

        if self.name not in bbob_fns:
            raise unknown_name_error("BBOB function", self.name, bbob_fns)
        require_int("seed", self.seed, 0)
        require_int("size", self.size, 2)

    @cached_property
    def problem(self) -> Any:
        """Return the wrapped evosax.problems.BBOBProblem."""
        from evosax.problems import BBOBProblem

        with mesh.eager_mode():  # even if it is first requested inside of a trace
            return BBOBProblem(self.name, self.size, f_opt=0.0, seed=self.seed)

    def init(self, key: Key) -> Float[Array, " size"]:
        return sample_uniform(key, self.bounds, self.size)

    def evaluate(self, key: Key, params: Float[Array, " size"]) -> Float[Array, ""]:
        values, _, _ = self.problem.eval(key, params[None], self.problem._state)
        return -values[0]
