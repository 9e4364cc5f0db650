"""Random search."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import SweepTrial


@dataclass(frozen=True)
class RandomSearch:
    """Random search: points drawn independently from the priors. The first trial uses the defaults.

    Source: Bergstra and Bengio 2012.
    """

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """Return points drawn uniformly from the unit cube; the first of a sweep is its center."""
        drawn = [np.random.default_rng([seed, len(trials) + i]).uniform(size=space.size) for i in range(n)]
        found = np.reshape(drawn, (n, space.size))
        if not trials:
            found[:1] = space.center
        return found
