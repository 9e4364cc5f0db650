"""Random-policy baseline: the return of random actions, with which a training is compared at its end."""

import dataclasses
import hashlib
import inspect
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from evorl.envs.wrappers import strip_reward_wrappers
from evorl.spaces import group_sizes, random_action
from evorl.training.episodes import play_episodes
from evorl.training.progress import Progress
from evorl.training.records.json_cache import JsonCache, read_json
from evorl.types import Env, HasRankingGroup, Problem, QDEvaluation

BASELINES_FILE = Path(__file__).parent / "random_returns.json"  # for the environments of evorl with default options
BASELINE_EPISODES = 64


class MeanReturn(NamedTuple):
    """A mean return with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def from_evaluation(cls, evaluation: dict[str, float]) -> "MeanReturn":
        """Return the mean return of an evaluation, as stored in `Progress`."""
        return cls(evaluation["return"], evaluation["low"], evaluation["high"])

    def compare_with(self, other: "MeanReturn") -> str:
        """Say whether this mean is better than another: whether the 95 % interval of their difference excludes 0.

        The interval of the difference of two independent means follows from their own intervals, even if
        these are not symmetric (MOVER; Zou and Donner 2008, doi:10.1002/sim.3095).
        """
        difference = self.mean - other.mean
        low = difference - np.hypot(self.mean - self.low, other.high - other.mean)
        high = difference + np.hypot(self.high - self.mean, other.mean - other.low)
        return "better" if low > 0 else "worse" if high < 0 else "no significant difference"

    def __str__(self) -> str:
        known = np.isfinite([self.low, self.high]).all() and self.low < self.high
        return f"{self.mean:.4g}" + (f" [{self.low:.4g}, {self.high:.4g}]" if known else "")


def get_random_return(env: Env | Problem) -> MeanReturn:
    """Return the return of random actions in an environment, or of random solutions of a problem.

    It is shipped with evorl, cached by an earlier training, or computed now.
    """
    env = strip_reward_wrappers(env) if isinstance(env, Env) else env
    remembered, name, own = JsonCache("random_returns.json"), repr(env), _hash_own_sources(env)
    found = remembered.get(f"{name} {own}") if own else read_json(BASELINES_FILE).get(name) or remembered.get(name)
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(value, float) for value in found)):
        found = list(
            evaluate_random_policy(env, BASELINE_EPISODES)
            if isinstance(env, Env)
            else evaluate_random_solutions(env, BASELINE_EPISODES)
        )
        remembered.put(f"{name} {own}" if own else name, found)
    return MeanReturn(*found)


def _hash_own_sources(part: Any) -> str:
    """Return a hash of the modules that define a user's classes in an environment; empty if all are evorl's."""
    modules = {kind.__module__ for kind in _list_classes(part)} - {"builtins"}
    sources = []
    for name in sorted(name for name in modules if not name.startswith("evorl.")):
        try:
            sources.append(f"{name} {inspect.getsource(sys.modules[name])}")
        except (OSError, TypeError, KeyError):  # for example of a notebook
            sources.append(f"{name} {os.getpid()}")
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16] if sources else ""


def _list_classes(part: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(part):
        yield type(part)
        for one in dataclasses.fields(part):
            yield from _list_classes(getattr(part, one.name))
    elif isinstance(part, (tuple, list)):
        for one in part:
            yield from _list_classes(one)
    elif isinstance(part, (Env, Problem)):
        yield type(part)


def describe_outcome(progress: Progress, env: Env | Problem) -> str:
    """Describe the return at the end of a training that was evaluated, compared with that at the beginning."""
    assert progress.initial_evaluation is not None
    assert progress.latest_evaluation is not None
    taken = "env steps" if isinstance(env, Env) else "function evaluations"
    steps = progress.latest_evaluation["env_steps"]
    first, last = (
        MeanReturn.from_evaluation(progress.initial_evaluation),
        MeanReturn.from_evaluation(progress.latest_evaluation),
    )
    apart = progress.initial_evaluation != progress.latest_evaluation and math.isfinite(first.mean)
    began = f"; before training {first}: {last.compare_with(first)}" if apart else ""
    best = (
        f"; best policy in fresh episodes: {MeanReturn.from_evaluation(progress.best_reevaluation)}"
        if progress.best_reevaluation is not None
        else ""
    )
    return f"final return {last} after {steps:,.0f} {taken}{began}{best}"


def compare_with_random(last: MeanReturn, env: Env | Problem, random_exploitability: float | None = None) -> str:
    """Describe how a return compares with that of random actions or solutions.

    If the return is minus an exploitability, it is compared with `random_exploitability`, the exploitability
    of the uniformly random policy.
    """
    chance = (
        get_random_return(env)
        if random_exploitability is None
        else MeanReturn(-random_exploitability, -random_exploitability, -random_exploitability)
    )
    if random_exploitability is None and isinstance(env, Env) and find_unranked_groups(env):
        judged = "not comparable, because one group may gain what another loses"
    else:
        judged = last.compare_with(chance)
        judged = judged if judged.startswith("no") else f"the final return is {judged}"
    what = "policy" if isinstance(env, Env) else "solutions"
    random = f"random {what}" if random_exploitability is None else "random policy, minus its exploitability"
    return f"{random}: {chance}; {judged}"


def find_unranked_groups(env: Env) -> list[str]:
    """Return the groups of a game with several groups, if no group is chosen whose return ranks policies."""
    names = list(group_sizes(env.action_space))
    return names if len(names) > 1 and not (isinstance(env, HasRankingGroup) and env.ranked) else []


def evaluate_random_solutions(problem: Problem, count: int) -> MeanReturn:
    """Return the mean fitness of `count` random solutions; with several objectives, the mean of the first."""

    def evaluate_one(key: jax.Array) -> Any:
        fitness = problem.evaluate(key, problem.init(key))
        return (fitness.fitness if isinstance(fitness, QDEvaluation) else fitness).ravel()[0]

    values = np.asarray(jax.jit(jax.vmap(evaluate_one))(jax.random.split(jax.random.key(0), count)), float)
    mean, reach = float(values.mean()), float(1.96 * values.std(ddof=1) / np.sqrt(count))
    return MeanReturn(mean, mean - reach, mean + reach)


def evaluate_random_policy(env: Env, episodes: int) -> MeanReturn:
    """Return the mean return of random actions in `episodes` parallel episodes."""

    def policy(obs: Any, memory: Any, keys: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
        draw = partial(random_action, env.action_space, env.observation_space)
        return jax.vmap(draw)(obs, keys), memory, {}

    stats = play_episodes(env, env.default_params, policy, None, episodes, seed=0)
    mean, reach = float(np.mean(stats.return_sums["return"])), 1.96 * float(stats.return_error)
    return MeanReturn(mean, mean - reach, mean + reach)
