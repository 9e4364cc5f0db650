"""How a policy fares on the worst of random levels: the conditional value at risk of its solved rate.

Source: Rutherford et al. 2024, arXiv:2408.15099, section 5. The worst are chosen by one set of episodes and the rate is
that of another one on the same levels: of the set that chose them it would be too low.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from evorl import tree
from evorl.envs.on_level import with_levels
from evorl.errors import OptionError, require_whole
from evorl.levels import NEVER_SOLVED, can_be_solved
from evorl.training.suites.attempts import attempt
from evorl.types import Acts, Judged, Key, KnowsOptimum, Level, State

PERCENTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
TRIES = 1000  # draws of a level until one can be solved
SLOTS = 4096  # episodes side by side, so that memory does not grow with the levels


@dataclass(frozen=True)
class Risk:
    """Solved rates of a workflow's policy on so many random levels, of two sets of so many episodes on each.

    Levels are drawn as the workflow's environment draws them; where their optimum is known, those that cannot be solved
    are drawn anew. Raises OptionError where no return solves a level.
    """

    workflow: Acts
    levels: int = 10_000
    attempts: int = 10
    explores: bool = True

    def __post_init__(self) -> None:
        require_whole("levels", self.levels)
        require_whole("attempts", self.attempts)
        env, _ = with_levels(self.workflow.env, self.workflow.env.default_params)
        name = type(env).__name__
        if not isinstance(env, Judged):
            raise OptionError(f"suite=risk: is for levels that are solved or not (evorl.types.Judged), not for {name}")
        if not can_be_solved(env):
            raise OptionError(f"suite=risk: {NEVER_SOLVED.format(name)}")

    def rates(self, state: State, key: Key) -> tuple[Float[np.ndarray, " levels"], Float[np.ndarray, " levels"]]:
        """The solved rate of each level in one set of episodes and in the other; raises OptionError without levels."""
        keys = jax.random.split(key, -(-self.levels // self.at_once))
        parts = [jax.device_get(self._of_block(state, key)) for key in keys]
        found, first, second = (np.concatenate(part)[: self.levels] for part in zip(*parts, strict=True))
        if not found.all():
            raise OptionError(f"suite=risk: of {TRIES} levels that were drawn in a row, none can be solved")
        return first, second

    @property
    def at_once(self) -> int:
        """Levels that are played side by side."""
        return min(self.levels, max(1, SLOTS // (2 * self.attempts)))

    @cached_property
    def _of_block(self) -> Callable[[State, Key], tuple[Array, Array, Array]]:
        """Of as many new levels whether each can be solved, and its rate in each set; compiled once."""

        @jax.jit
        def of_block(state: State, key: Key) -> tuple[Array, Array, Array]:
            env, params = with_levels(self.workflow.env, state.env_params)
            assert isinstance(env, Judged)
            key_levels, key_play = jax.random.split(key)
            levels, found = solvable(env, params, jax.random.split(key_levels, self.at_once))
            several = jax.tree.map(lambda x: jnp.repeat(x, 2 * self.attempts, axis=0), levels)
            returns = attempt(self.workflow, state, several, self.explores, key_play).returns
            rates = env.solved(returns).reshape(self.at_once, 2, self.attempts).mean(-1)
            return found, rates[:, 0], rates[:, 1]

        return of_block


def solvable(env: Judged, params: Any, keys: Key) -> tuple[Level, Bool[Array, " n"]]:
    """A level for each of keys [n], drawn anew until it can be solved, where that is known, and whether it can."""
    if not isinstance(env, KnowsOptimum):
        return jax.vmap(env.sample, (0, None))(keys, params), jnp.ones(len(keys), bool)
    known: KnowsOptimum = env

    def one(key: Key) -> tuple[Level, Array]:
        def draw(i: Array, _: Any = None) -> tuple[Level, Array]:
            level = known.sample(jax.random.fold_in(key, i), params)
            return level, env.solved(known.optimal_return(level))

        nothing = tree.zeros(jax.eval_shape(draw, jnp.int32(0)))
        return tree.repeat(jnp.int32(TRIES), draw, nothing, lambda drawn: ~drawn[1])

    return jax.vmap(one)(keys)


def curve(ranked: Any, measured: Any, percents: Any = PERCENTS) -> Float[np.ndarray, " percents"]:
    """The mean of measured [n] over the a percent of levels that are the lowest in ranked [n], for each a.

    Levels that are alike in ranked count alike: where some of them belong to the worst and some do not, it is the mean
    over the orders in which they may come.
    """
    _, group = np.unique(ranked, return_inverse=True)
    return _curve(np.bincount(group), np.bincount(group, measured), percents)


def interval(
    ranked: Any, measured: Any, percents: Any = PERCENTS, resamples: int = 2000, seed: int = 0
) -> tuple[Float[np.ndarray, " percents"], Float[np.ndarray, " percents"]]:
    """The 95 % percentile bootstrap interval of the curve over levels, which are ranked anew in every resample."""
    _, group = np.unique(ranked, return_inverse=True)
    rng, n, groups = np.random.default_rng(seed), len(group), group.max() + 1
    curves = []
    for _ in range(resamples):
        drawn = rng.integers(0, n, n)
        counts = np.bincount(group[drawn], minlength=groups)
        curves.append(_curve(counts, np.bincount(group[drawn], np.asarray(measured)[drawn], groups), percents))
    low, high = np.quantile(curves, (0.025, 0.975), axis=0)
    return low, high


def _curve(counts: np.ndarray, sums: np.ndarray, percents: Any) -> np.ndarray:
    """Of groups of levels, the worst first, which are so many and have these sums."""
    at = np.concatenate([[0], np.cumsum(counts)])
    worst = np.asarray(percents) / 100 * at[-1]
    return np.interp(worst, at, np.concatenate([[0], np.cumsum(sums)])) / worst
