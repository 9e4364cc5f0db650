"""What a random policy earns in an environment: what a training is compared with at its end."""

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from evorl.envs.wrappers import unshaped
from evorl.spaces import random_action, sizes
from evorl.training.episodes import play
from evorl.training.progress import Progress
from evorl.training.records.remembered import Remembered, read
from evorl.types import Env, Problem, Quality, Ranks

SHIPPED = Path(__file__).parent / "random_returns.json"  # of the environments that evorl ships, as they are by default
EPISODES = 64


class Return(NamedTuple):
    """A mean return and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, evaluation: dict[str, float]) -> "Return":
        """That of an evaluation, as Progress keeps it."""
        return cls(evaluation["return"], evaluation["low"], evaluation["high"])

    def compared(self, other: "Return") -> str:
        """Say whether this is better than the other: whether the 95 % interval of their difference leaves out 0.

        That of two independent means follows from their own, also where these are not symmetric (MOVER; Zou and Donner
        2008, doi:10.1002/sim.3095).
        """
        difference = self.mean - other.mean
        low = difference - np.hypot(self.mean - self.low, other.high - other.mean)
        high = difference + np.hypot(self.high - self.mean, other.mean - other.low)
        return "better" if low > 0 else "worse" if high < 0 else "no difference can be told"

    def __str__(self) -> str:
        known = np.isfinite([self.low, self.high]).all() and self.low < self.high
        return f"{self.mean:.4g}" + (f" [{self.low:.4g}, {self.high:.4g}]" if known else "")


def random_return(env: Env | Problem) -> Return:
    """That of actions drawn at random, or of a problem of solutions.

    It is shipped, remembered from an earlier training, or played.
    """
    env = unshaped(env) if isinstance(env, Env) else env
    remembered, name = Remembered("random_returns.json"), repr(env)
    found = read(SHIPPED).get(name) or remembered.get(name)
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(value, float) for value in found)):
        found = list(played(env, EPISODES) if isinstance(env, Env) else drawn(env, EPISODES))
        remembered.put(name, found)
    return Return(*found)


def outcome(progress: Progress, env: Env | Problem) -> str:
    """What a training that was evaluated has come to, and where it began."""
    assert progress.first is not None
    assert progress.last is not None
    taken = "env steps" if isinstance(env, Env) else "evaluations"
    steps = progress.last["env_steps"]
    first, last = Return.of(progress.first), Return.of(progress.last)
    apart = progress.first != progress.last and math.isfinite(first.mean)
    began = f"; it began at {first}: {last.compared(first)}" if apart else ""
    best = f"; the best policy, evaluated anew: {Return.of(progress.tested)}" if progress.tested is not None else ""
    return f"return {last} after {steps:,.0f} {taken}{began}{best}"


def verdict(last: Return, env: Env | Problem, exploited: float | None = None) -> str:
    """How a return compares with that of random actions or solutions.

    Or, where it is minus an exploitability, with that of play at random, `exploited`.
    """
    chance = random_return(env) if exploited is None else Return(-exploited, -exploited, -exploited)
    if exploited is None and isinstance(env, Env) and rivals(env):
        judged = "what one group gains another may lose, so that this says little"
    else:
        judged = last.compared(chance)
        judged = judged if judged.startswith("no") else f"this is {judged}"
    what = "actions" if isinstance(env, Env) else "solutions"
    random = f"random {what} earn" if exploited is None else "minus the exploitability of play at random is"
    return f"{random} {chance}: {judged}"


def rivals(env: Env) -> list[str]:
    """The groups of a game of several in which no one's return ranks."""
    names = list(sizes(env.action_space))
    return names if len(names) > 1 and not (isinstance(env, Ranks) and env.ranked) else []


def drawn(problem: Problem, count: int) -> Return:
    """The same of so many solutions, of several objectives the first."""

    def one(key: jax.Array) -> Any:
        fitness = problem.evaluate(key, problem.init(key))
        return (fitness.fitness if isinstance(fitness, Quality) else fitness).ravel()[0]

    values = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), count)), float)
    mean, reach = float(values.mean()), float(1.96 * values.std(ddof=1) / np.sqrt(count))
    return Return(mean, mean - reach, mean + reach)


def played(env: Env, episodes: int) -> Return:
    """The same of so many episodes, side by side."""

    def policy(obs: Any, memory: Any, keys: jax.Array) -> tuple[Any, Any, dict[str, Any]]:
        draw = partial(random_action, env.action_space, env.observation_space)
        return jax.vmap(draw)(obs, keys), memory, {}

    stats = play(env, env.default_params, policy, (), episodes, seed=0)
    mean, reach = float(np.mean(stats.totals["return"])), 1.96 * float(stats.error)
    return Return(mean, mean - reach, mean + reach)
