"""Protein, a cost-aware sampler for hyperparameter sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from evorl.errors import require, require_int
from evorl.sweeps.gaussian_process import GaussianProcess
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import (
    RUNNING,
    SweepTrial,
    TrialObservations,
    collect_observations,
    find_pareto_points,
    select_informative,
)

EPSILON = 1e-9


@dataclass(frozen=True)
class Protein:
    """Cost-aware Bayesian optimization with Gaussian processes (Protein).

    The candidates are random points around the Pareto-optimal points of score and cost. The sampler chooses
    the candidate with the largest score * (1 - |expansion * U(0, 1) - cost|). Score and logarithm of the
    cost, both scaled to [0, 1], are the predictions of two Gaussian processes; the prior mean of the cost is
    1. If all trials have the same cost, the score decides.

    The first trial uses the defaults. Pending trials count as having the mean score (the constant liar of
    Ginsbourger et al. 2010). Categories, which PufferLib does not search, are one-hot. Since the model cannot
    learn about a category that was never tried, some categories are drawn at random.

    Args:
        candidates: Number of candidates around each Pareto-optimal point.
        reach: Largest distance of a candidate from its center in each coordinate, as a fraction of the unit
            cube.
        exploration: Probability that a category of a candidate is redrawn, and that all candidates of a
            suggestion share one random category.
        expansion: Upper limit of the target cost, which is drawn uniformly, on the scale where the largest
            observed cost is 1.
        curve_points: Maximum number of points of the curve of each trial that the models use.
        most_points: Maximum number of points of all trials that the models use, the most informative ones
            (`select_informative`).
        most_centers: Maximum number of Pareto-optimal points to sample around; if there are more, they are
            drawn at random.

    Source: PufferLib 3.0 (Suarez 2025), after CARBS (Fetterman et al. 2023, arXiv:2306.08055).
    """

    candidates: int = 256
    reach: float = 0.25
    exploration: float = 0.25
    expansion: float = 1.25
    curve_points: int = 10
    most_points: int = 500
    most_centers: int = 40

    def __post_init__(self) -> None:
        for name in ("candidates", "curve_points", "most_points", "most_centers"):
            require_int(name, getattr(self, name))
        for name in ("reach", "exploration"):
            require(0 < getattr(self, name) <= 1, name, getattr(self, name), "must be above 0 and at most 1")
        require(self.expansion > 0, "expansion", self.expansion, "must be above 0")

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """Return the candidates with the best predicted score, weighted by their predicted cost."""
        rng = np.random.default_rng([seed, len(trials)])
        known = collect_observations(
            space, trials, self.curve_points, partial(select_informative, most=self.most_points)
        )
        pending = [np.array(trial.point) for trial in trials if trial.state == RUNNING]
        chosen = [] if trials else [space.center]
        front = np.flatnonzero(find_pareto_points(known.score, known.cost))
        models = _SurrogateModels.fit(known._replace(x=space.to_features(known.x))) if len(front) else None
        while len(chosen) < n:
            around = known.x[self._select_centers(front, rng)] if models else space.center[None]
            found = self._sample_around(space, around, rng)
            if models is None:
                chosen.append(found[0])
                continue
            waiting = np.reshape([*pending, *chosen], (-1, space.size))
            score, cost = models.predict(space.to_features(found), space.to_features(waiting))
            weight = 1 - np.abs(self.expansion * rng.uniform() - cost) if cost is not None else 1.0
            chosen.append(found[np.argmax(score * weight)])
        return np.array(chosen[:n])

    def _select_centers(self, front: Int[np.ndarray, " m"], rng: np.random.Generator) -> Int[np.ndarray, " k"]:
        few = len(front) <= self.most_centers
        return front if few else np.sort(rng.choice(front, self.most_centers, replace=False))

    def _sample_around(
        self, space: SearchSpace, centers: Float[np.ndarray, "m d"], rng: np.random.Generator
    ) -> Float[np.ndarray, "candidates d"]:
        near = np.repeat(centers, self.candidates, axis=0)
        moved = np.clip(near + space.compute_search_radius(self.reach) * rng.uniform(-1, 1, near.shape), 0, 1)
        return space.explore_categories(moved, self.exploration, rng)


@dataclass(frozen=True)
class _SurrogateModels:
    """Models of score and cost; no model of the cost if all costs are equal."""

    score: GaussianProcess
    cost: GaussianProcess | None

    @classmethod
    def fit(cls, known: TrialObservations) -> "_SurrogateModels":
        sound = np.isfinite(known.cost)
        log = np.log(np.maximum(known.cost[sound], EPSILON))
        same = np.ptp(log) < EPSILON
        cost = None if same else GaussianProcess.fit(known.x[sound], _scale_to_unit(log) - 1)
        return cls(GaussianProcess.fit(known.x, _scale_to_unit(known.score)), cost)

    def predict(
        self, x: Float[np.ndarray, "m features"], pending: Float[np.ndarray, "p features"]
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"] | None]:
        score = self.score
        if len(pending):
            score = score.condition_on(pending, np.full(len(pending), score.y.mean()))
        return score.mean(x), None if self.cost is None else 1 + self.cost.mean(x)


def _scale_to_unit(values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Scale values to [0, 1]."""
    return (values - values.min()) / max(float(np.ptp(values)), EPSILON)
