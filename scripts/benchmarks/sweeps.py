"""Compare the samplers of sweeps on functions with a known optimum, and measure the time of a suggestion.

python scripts/benchmarks/sweeps.py              40 trials of each sampler compared with 200 random ones, 8 seeds
python scripts/benchmarks/sweeps.py --suggestions  CPU seconds of a suggestion, and of scikit-learn's Gaussian processes
python scripts/benchmarks/sweeps.py --ppo          the same figure of PPO on CartPole, 3 seeds, eight trials at a time

The figure is the best of forty trials divided by the best of two hundred random ones.

Tasks: lr is from 1e-5 to 1e-1, s = exp(-(log10 lr + 3)^2), and the budget c is from 0.1 to 10. The scores are
linear s c, logarithmic log(1 + s c), and percentile s / (1 + exp(-c)). The costs are c, with 20 % noise except in the
first task. Hartmann-6 is multiplied by 1 - exp(-c / 2). A trial's curve has 20 evaluations; each is the score of a
trial with that smaller budget. The first three are PufferLib's tasks (Suarez 2025). Hartmann's function is as in
Picheny et al. 2013, not negated.

PPO trains for 50,000 steps with the settings of classic/ppo_cartpole. Its score is the mean return over training, its
cost is constant, and the search covers the hyperparameters that it declares as searchable.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from evorl.agents import PPO
from evorl.envs.suites.gymnax import Gymnax
from evorl.population import PriorSpace
from evorl.priors import LogUniform, Uniform
from evorl.sweeps.gaussian_process import GaussianProcess
from evorl.sweeps.protein import Protein
from evorl.sweeps.random_search import RandomSearch
from evorl.sweeps.space import Parameter, SearchSpace
from evorl.sweeps.tpe import TPE
from evorl.sweeps.trials import DONE, Evaluation, Sampler, SweepTrial
from evorl.training.program import Program, make_run_args
from evorl.workflows.on_policy import OnPolicy

POINTS, TRIALS, RANDOM = 20, 40, 200
STEPS, TOGETHER = 50_000, 8  # env steps of PPO on CartPole; trials at a time
BUDGET = Parameter("env_steps", LogUniform(0.1, 10.0), 1.0)
LR = Parameter("agent.workflow.agent.lr", LogUniform(1e-5, 1e-1), 1e-2)  # the optimum is 1e-3
PLACES = tuple(Parameter(f"agent.workflow.agent.x{i}", Uniform(0.0, 1.0), 0.5) for i in range(6))
HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
WIDTHS = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
TOPS = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(x: np.ndarray) -> float:
    return float(HEIGHTS @ np.exp(-(WIDTHS * (x - TOPS) ** 2).sum(1)))


def s(values: dict[str, float]) -> float:
    return math.exp(-((math.log10(values[LR.name]) + 3) ** 2))


def at(values: dict[str, float]) -> np.ndarray:
    return np.array([values[one.name] for one in PLACES])


Task = tuple[SearchSpace, Callable[[dict[str, float], float], float], float]
SYNTHETIC = SearchSpace((LR, BUDGET))
TASKS: dict[str, Task] = {  # search space, score of values at a budget, noise of the costs
    "linear": (SYNTHETIC, lambda values, c: s(values) * c, 0.0),
    "logarithmic": (SYNTHETIC, lambda values, c: math.log(1 + s(values) * c), 0.2),
    "percentile": (SYNTHETIC, lambda values, c: s(values) / (1 + math.exp(-c)), 0.2),
    "hartmann": (SearchSpace((*PLACES, BUDGET)), lambda values, c: hartmann(at(values)) * (1 - math.exp(-c / 2)), 0.2),
}


def tried(task: Task, number: int, point: np.ndarray, rng: np.random.Generator) -> SweepTrial:
    space, score, noise = task
    values = space.decode(point)
    c, dear = values[BUDGET.name], max(0.1, 1 + noise * rng.normal())
    parts = np.arange(1, POINTS + 1) / POINTS
    curve = tuple(Evaluation(float(part), c * part * dear, score(values, c * part)) for part in parts)
    return SweepTrial(number, tuple(point), values, DONE, curve)


def best(task: Task, sampler: Sampler, count: int, seed: int) -> float:
    trials: list[SweepTrial] = []
    rng = np.random.default_rng([seed, 1])
    while len(trials) < count:
        point = sampler.suggest(task[0], trials, 1, seed)[0]
        trials.append(tried(task, len(trials), point, rng))
    return max(trial.score for trial in trials)


def reached(seeds: int) -> None:
    samplers = {"Protein": Protein(), "Protein, ends of curves alone": Protein(curve_points=1)}
    samplers |= {"TPE": TPE(), "random": RandomSearch()}
    print(f"| best of {TRIALS} over best of {RANDOM} random: median (worst) | {' | '.join(samplers)} |")
    print("|---" * (len(samplers) + 1) + "|")
    for name, task in TASKS.items():
        bar = [best(task, RandomSearch(), RANDOM, 1000 + seed) for seed in range(seeds)]
        cells = []
        for sampler in samplers.values():
            ratios = [best(task, sampler, TRIALS, seed) / bar[seed] for seed in range(seeds)]
            cells.append(f"{np.median(ratios):.2f} ({min(ratios):.2f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def training(seed: int) -> Callable[[Sequence[dict[str, float]]], list[float]]:
    """Return a function that trains PPO on CartPole, vmapped over hyperparameters, and returns the mean returns.

    The mean of a trial is over its whole training.
    """
    env = Gymnax("CartPole-v1")
    agent = PPO(hidden=(64, 64), value_coef=0.5)
    workflow = OnPolicy(env, agent, num_envs=8, num_steps=64, batch_size=128, normalize_observations=False)
    iterations = math.ceil(STEPS / workflow.num_transitions)
    program = Program(workflow, [seed], iterations, True)

    @jax.jit
    def run(numbers: Any) -> jax.Array:
        def one(numbers: Any) -> jax.Array:
            state = workflow.init(program.keys[0, 0], {"agent": numbers})
            metrics = program.run_one(state, program.keys[0], *make_run_args(0, iterations, False))[1]
            return metrics["return"].mean()

        return jax.vmap(one)(numbers)

    def scores(values: Sequence[dict[str, float]]) -> list[float]:
        numbers = {name: np.array([one[name] for one in values]) for name in values[0]}
        return np.nan_to_num(run(numbers)).tolist()

    return scores


def reached_by_ppo(seeds: int) -> None:
    priors, defaults = PriorSpace(PPO()).priors, PPO()
    space = SearchSpace(tuple(Parameter(name, prior, getattr(defaults, name)) for name, prior in priors.items()))
    samplers, found = {"Protein": Protein(), "TPE": TPE(), "random": RandomSearch()}, []
    for seed in range(seeds):
        scores = training(seed)

        def best(sampler: Sampler, count: int, first: int, scores: Any = scores) -> float:
            trials: list[SweepTrial] = []
            while len(trials) < count:
                points = sampler.suggest(space, trials, TOGETHER, first)
                values = [space.decode(point) for point in points]
                for point, one, score in zip(points, values, scores(values), strict=True):
                    trials.append(SweepTrial(len(trials), tuple(point), one, DONE, (Evaluation(1.0, STEPS, score),)))
            return max(trial.score for trial in trials)

        bar = best(RandomSearch(), RANDOM, 1000 + seed)
        found.append([best(sampler, TRIALS, seed) / bar for sampler in samplers.values()])
        told = ", ".join(f"{name} {x:.2f}" for name, x in zip(samplers, found[-1], strict=True))
        print(f"seed {seed}: best of {RANDOM} random {bar:.0f}; {told}", flush=True)
    cells = [f"{np.median(x):.2f} ({min(x):.2f})" for x in np.transpose(found)]
    print(f"| PPO on CartPole, {', '.join(samplers)} | {' | '.join(cells)} |")


def suggestions() -> None:
    print("| points | Protein | scikit-learn's processes | ours |\n|---|---|---|---|")
    for points in (100, 300):
        rng = np.random.default_rng(0)
        x, candidates = rng.uniform(size=(points, 12)), rng.uniform(size=(2560, 12))
        y = np.exp(-(4 * (x - 0.5) ** 2) @ rng.uniform(size=12)) + 0.05 * rng.normal(size=points)
        cost = np.exp(x @ rng.uniform(size=12))
        numbers = tuple(Parameter(f"agent.workflow.agent.x{i}", Uniform(0.0, 1.0), 0.5) for i in range(12))
        curves = [(Evaluation(1.0, float(c), float(v)),) for c, v in zip(cost, y, strict=True)]
        trials = [SweepTrial(i, tuple(x[i]), {}, DONE, curve) for i, curve in enumerate(curves)]
        targets = (y - y.min()) / np.ptp(y), (np.log(cost) - np.log(cost).min()) / np.ptp(np.log(cost)) - 1
        found = [
            timed(lambda trials=trials, numbers=numbers: Protein().suggest(SearchSpace(numbers), trials, 1, 0)),
            timed(lambda x=x, targets=targets, at=candidates: [sklearns(x, one, at) for one in targets]),
            timed(
                lambda x=x, targets=targets, at=candidates: [GaussianProcess.fit(x, one).mean(at) for one in targets]
            ),
        ]
        print(f"| {points} | {' | '.join(f'{seconds:.2f}' for seconds in found)} |", flush=True)


def sklearns(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    from sklearn.gaussian_process import GaussianProcessRegressor  # pyright: ignore[reportMissingImports]
    from sklearn.gaussian_process.kernels import (  # pyright: ignore[reportMissingImports]
        ConstantKernel,
        DotProduct,
        Matern,
        WhiteKernel,
    )

    kernel = ConstantKernel() * Matern([0.5] * x.shape[1], nu=1.5) + ConstantKernel() * DotProduct() + WhiteKernel(1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about kernel parameters at a bound
        return np.asarray(GaussianProcessRegressor(kernel).fit(x, y).predict(at))


def timed(what: Callable[[], object], times: int = 5) -> float:
    """Return the median CPU seconds of a call."""
    what()
    taken = []
    for _ in range(times):
        now = time.process_time()
        what()
        taken.append(time.process_time() - now)
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--ppo", action="store_true")
    parser.add_argument("--suggestions", action="store_true")
    given = parser.parse_args()
    if given.suggestions:
        suggestions()
    elif given.ppo:
        reached_by_ppo(given.seeds or 3)
    else:
        reached(given.seeds or 8)


if __name__ == "__main__":
    main()
