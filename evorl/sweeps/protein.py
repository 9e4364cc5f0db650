"""Protein: what is likely to score well for what it is likely to cost."""

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
    """Of candidates around the best for their cost, the one with the largest score (1 - |expansion U(0, 1) - cost|).

    Source: PufferLib 3.0 (Suarez 2025), after CARBS (Fetterman et al. 2023, arXiv:2306.08055). Score and logarithm of
    the cost, both in [0, 1], are what two Gaussian processes expect there, the latter's prior mean being 1. They know
    up to curve_points points of each trial's curve, and of all these the most_points that tell most
    (trials.select_informative). The first trial is that of the defaults. What is pending counts as having the mean
    score (the constant liar of Ginsbourger et al. 2010). Where all cost the same, the score decides. Categories, which
    PufferLib does not search, are one-hot; as nothing is expected of one that was not tried, some are tried by chance.
    """

    candidates: int = 256  # around each point that none is better than
    reach: float = 0.25  # of the unit cube, either way
    exploration: float = 0.25  # the probability that a candidate, and that a suggestion, has another category
    expansion: float = 1.25
    curve_points: int = 10
    most_points: int = 500
    most_centers: int = 40  # of the points that none is better than, drawn where there are more

    def __post_init__(self) -> None:
        for name in ("candidates", "curve_points", "most_points", "most_centers"):
            require_int(name, getattr(self, name))
        for name in ("reach", "exploration"):
            require(0 < getattr(self, name) <= 1, name, getattr(self, name), "must be above 0 and at most 1")
        require(self.expansion > 0, "expansion", self.expansion, "must be above 0")

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
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
    """What is expected of score and cost; no cost where all cost the same."""

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
    """values from 0 to 1."""
    return (values - values.min()) / max(float(np.ptp(values)), EPSILON)
