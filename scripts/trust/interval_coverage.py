"""Measure how often intervals over seeds contain the true value, and how often equal agents are found to differ.

python scripts/trust/interval_coverage.py              a minute on one core
python scripts/trust/interval_coverage.py --draws 500

Prints the tables of the docs. Scores are drawn from three distributions: a normal one; a lognormal one whose logarithm
has a standard deviation of 1; and a bimodal one, 0 or 1 with equal probability and noise of 0.05, as of seeds that
learn or do not. A 95 % interval should contain the mean 95 times of 100, and find a difference between equal agents
5 times of 100.
"""

import argparse
import datetime
from collections.abc import Callable

import numpy as np
import scipy
from scipy.stats import bootstrap as scipys

from evorl import stats

RUNS, TASKS = (2, 3, 4, 5, 8, 16, 32), 10
SHIFTS = (0.0, 1.0, 3.0)  # difference of two algorithms, in standard deviations
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SCORES: dict[str, tuple[Draw, float]] = {  # a sampler of scores of a shape, and their mean
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "lognormal": (lambda rng, shape: rng.lognormal(size=shape), float(np.exp(0.5))),
    "bimodal": (lambda rng, shape: rng.integers(0, 2, shape) + rng.normal(0, 0.05, shape), 0.5),
}


def bootstrapped(scores: np.ndarray, method: str) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, by SciPy."""
    found = scipys((scores,), np.mean, n_resamples=1000, method=method, rng=0).confidence_interval
    return found.low, found.high


def bootstrapped_improvement(scores: list[np.ndarray], others: list[np.ndarray]) -> tuple[float, float]:
    """Return the interval of the probability of improvement by the stratified percentile bootstrap, as rliable does."""
    rng, found = np.random.default_rng(0), []
    for x, y in zip(scores, others, strict=True):
        x, y = (rng.choice(one, (200, len(one))) for one in (x, y))
        found.append((np.sign(x[:, :, None] - y[:, None]) + 1).mean((1, 2)) / 2)
    low, high = np.quantile(np.mean(found, 0), [0.025, 0.975])
    return float(low), float(high)


def covered(intervals: list[tuple[float, float]], truth: float) -> str:
    low, high = np.transpose(intervals)
    return f"{100 * np.mean((low <= truth) & (truth <= high)):.1f}"


def told_apart(intervals: list[tuple[float, float]]) -> str:
    low, high = np.transpose(intervals)
    return f"{100 * np.mean((low > 0) | (high < 0)):.1f}"


def gaps(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (low - high', high - low') of two intervals; it excludes 0 if the intervals are disjoint."""
    return [(x[0] - y[1], x[1] - y[0]) for x, y in zip(a, b, strict=True)]


def table(title: str, columns: list[str]) -> None:
    print(f"\n{title}\n\n| scores | seeds | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000, help="of each row")
    draws = parser.parse_args().draws
    print(f"{datetime.date.today()}, NumPy {np.__version__}, SciPy {scipy.__version__}, {draws} draws of each row")

    table("Intervals that hold the mean, %", ["Student's t", "percentile bootstrap", "BCa bootstrap"])
    for name, (draw, truth) in SCORES.items():
        for runs in RUNS[1:]:
            found = draw(np.random.default_rng(runs), (draws, runs))
            cells = [covered([stats.mean_interval(one) for one in found], truth)]
            cells += [covered([bootstrapped(one, method) for one in found], truth) for method in ("percentile", "BCa")]
            print(f"| {name} | {runs} | {' | '.join(cells)} |", flush=True)

    table(
        "Equal agents that are found to differ, %",
        ["Welch's t", "disjoint t intervals", "disjoint percentile intervals"],
    )
    for name, (draw, _) in SCORES.items():
        for runs in RUNS:
            a, b = draw(np.random.default_rng(runs), (2, draws, runs))
            cells = [told_apart([stats.difference_interval(x, y) for x, y in zip(a, b, strict=True)])]
            cells.append(told_apart(gaps(*([stats.mean_interval(one) for one in group] for group in (a, b)))))
            cells.append(told_apart(gaps(*([bootstrapped(one, "percentile") for one in group] for group in (a, b)))))
            cells[:2] = cells[:2] if runs >= stats.MIN_RUNS else ["none", "none"]
            print(f"| {name} | {runs} | {' | '.join(cells)} |", flush=True)

    table(f"Intervals that hold the interquartile mean over {TASKS} tasks, %", ["stratified bootstrap", "of one task"])
    for name, (draw, _) in SCORES.items():
        far = np.linspace(0, 3, TASKS)  # offsets of the tasks' scores
        truths = [
            float(stats.iqm(draw(np.random.default_rng(0), (10**5, tasks)) + far[:tasks])) for tasks in (TASKS, 1)
        ]
        for runs in RUNS[1:]:
            found = draw(np.random.default_rng(runs), (draws, runs, TASKS)) + far
            both = [[stats.bootstrap_interval(one[:, :tasks], resamples=500) for one in found] for tasks in (TASKS, 1)]
            print(f"| {name} | {runs} | {' | '.join(map(covered, both, truths))} |", flush=True)

    table(
        "Intervals that hold the probability of improvement, normal scores, %",
        ["Newcombe, one task", "Newcombe, 3 tasks", "percentile bootstrap, one task", "percentile bootstrap, 3 tasks"],
    )
    for shift in SHIFTS:
        truth = float(scipy.stats.norm.cdf(shift / np.sqrt(2)))
        for runs in RUNS[1:]:
            x, y = np.random.default_rng(runs).normal(size=(2, draws, 3, runs))
            cells = []
            for interval in (stats.improvement_interval, bootstrapped_improvement):
                for tasks in (1, 3):
                    found = [interval(list(a[:tasks] + shift), list(b[:tasks])) for a, b in zip(x, y, strict=True)]
                    cells.append(covered(found, truth))
            print(f"| shift {shift:g} | {runs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
