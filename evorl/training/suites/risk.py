"""Conditional value at risk (CVaR) of the solved rate: how a policy performs on the worst of random levels.

Source: Rutherford et al. 2024, arXiv:2408.15099, section 5. One set of episodes selects the worst levels, and
another set on the same levels measures the solved rate. In the set that selects the levels, the rate would be
biased low.
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
from evorl.envs.on_level import find_leveled_env
from evorl.errors import OptionError, require_int
from evorl.training.suites.level_episodes import run_on_levels
from evorl.types import HasOptimalReturn, Key, Level, PolicyWorkflow, SolvableLevelEnv, State
from evorl.ued.scores import UNSOLVABLE_MESSAGE, can_be_solved

PERCENTS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
MAX_DRAWS = 1000  # maximum number of draws until a level is solvable
MAX_PARALLEL_ENVS = 4096  # parallel episodes; the bound keeps memory independent of the number of levels


@dataclass(frozen=True)
class RiskSuite:
    """Solved rates of the policy of a workflow on random levels, in two independent sets of episodes.

    Levels are sampled as the environment of the workflow samples them. If the optimal return of a level is
    known, unsolvable levels are replaced by new ones.

    Args:
        workflow: Workflow that trains the policy.
        levels: Number of levels.
        attempts: Number of episodes on each level in each set.
        explore: Whether actions are sampled instead of greedy.

    Raises:
        OptionError: The environment does not define when a level is solved, or no return solves a level.
    """

    workflow: PolicyWorkflow
    levels: int = 10_000
    attempts: int = 10
    explore: bool = True

    def __post_init__(self) -> None:
        require_int("levels", self.levels)
        require_int("attempts", self.attempts)
        env, _ = find_leveled_env(self.workflow.env, self.workflow.env.default_params)
        name = type(env).__name__
        if not isinstance(env, SolvableLevelEnv):
            raise OptionError(
                f"suite=risk: needs levels that are solved or not (evorl.types.SolvableLevelEnv), unlike {name}"
            )
        if not can_be_solved(env):
            raise OptionError(f"suite=risk: {UNSOLVABLE_MESSAGE.format(name)}")

    def compute_solve_rates(
        self, state: State, key: Key
    ) -> tuple[Float[np.ndarray, " levels"], Float[np.ndarray, " levels"]]:
        """Compute the solved rate of each level, once in each of the two sets of episodes.

        Args:
            state: State of the workflow.
            key: Random key.

        Returns:
            Solved rates in the first and in the second set, each of shape [levels].

        Raises:
            OptionError: No solvable level was found in 1000 consecutive draws.
        """
        keys = jax.random.split(key, -(-self.levels // self.levels_per_batch))
        parts = [jax.device_get(self._evaluate_block(state, key)) for key in keys]
        found, first, second = (np.concatenate(part)[: self.levels] for part in zip(*parts, strict=True))
        if not found.all():
            raise OptionError(f"suite=risk: none of {MAX_DRAWS} consecutive random levels can be solved")
        return first, second

    @property
    def levels_per_batch(self) -> int:
        """Return the number of levels that are played in parallel."""
        return min(self.levels, max(1, MAX_PARALLEL_ENVS // (2 * self.attempts)))

    @cached_property
    def _evaluate_block(self) -> Callable[[State, Key], tuple[Array, Array, Array]]:
        """Return a compiled function that samples a batch of levels and plays both sets of episodes on them.

        It returns whether each level is solvable, and the solved rates of the levels in the two sets.
        """

        @jax.jit
        def evaluate_block(state: State, key: Key) -> tuple[Array, Array, Array]:
            env, params = find_leveled_env(self.workflow.env, state.env_params)
            assert isinstance(env, SolvableLevelEnv)
            key_levels, key_play = jax.random.split(key)
            levels, found = sample_solvable(env, params, jax.random.split(key_levels, self.levels_per_batch))
            several = jax.tree.map(lambda x: jnp.repeat(x, 2 * self.attempts, axis=0), levels)
            returns = run_on_levels(self.workflow, state, several, self.explore, key_play).returns
            rates = env.is_solved(returns).reshape(self.levels_per_batch, 2, self.attempts).mean(-1)
            return found, rates[:, 0], rates[:, 1]

        return evaluate_block


def sample_solvable(env: SolvableLevelEnv, params: Any, keys: Key) -> tuple[Level, Bool[Array, " n"]]:
    """Sample one level per key [n], and return the levels and whether each is solvable.

    If the optimal return is known, a level is sampled again until it is solvable, at most 1000 times.
    Otherwise each level counts as solvable.
    """
    if not isinstance(env, HasOptimalReturn):
        return jax.vmap(env.sample_level, (0, None))(keys, params), jnp.ones(len(keys), bool)
    known: HasOptimalReturn = env

    def sample_one(key: Key) -> tuple[Level, Array]:
        def sample(i: Array, _: Any = None) -> tuple[Level, Array]:
            level = known.sample_level(jax.random.fold_in(key, i), params)
            return level, env.is_solved(known.optimal_return(level))

        nothing = tree.zeros_like(jax.eval_shape(sample, jnp.int32(0)))
        return tree.masked_fori_loop(jnp.int32(MAX_DRAWS), sample, nothing, lambda drawn: ~drawn[1])

    return jax.vmap(sample_one)(keys)


def compute_risk_curve(ranked: Any, measured: Any, percents: Any = PERCENTS) -> Float[np.ndarray, " percents"]:
    """Return, for each percentage a, the mean of `measured` [n] over the a % of levels with the lowest `ranked` [n].

    Levels with equal `ranked` are treated equally. If only some of them belong to the worst a %, the result
    is the mean over all orders of these levels.
    """
    _, group = np.unique(ranked, return_inverse=True)
    return _compute_curve(np.bincount(group), np.bincount(group, measured), percents)


def bootstrap_curve_interval(
    ranked: Any, measured: Any, percents: Any = PERCENTS, resamples: int = 2000, seed: int = 0
) -> tuple[Float[np.ndarray, " percents"], Float[np.ndarray, " percents"]]:
    """Return the 95 % percentile bootstrap interval of the risk curve.

    Levels are resampled, and each resample is ranked again.
    """
    _, group = np.unique(ranked, return_inverse=True)
    rng, n, groups = np.random.default_rng(seed), len(group), group.max() + 1
    curves = []
    for _ in range(resamples):
        drawn = rng.integers(0, n, n)
        counts = np.bincount(group[drawn], minlength=groups)
        curves.append(_compute_curve(counts, np.bincount(group[drawn], np.asarray(measured)[drawn], groups), percents))
    low, high = np.quantile(curves, (0.025, 0.975), axis=0)
    return low, high


def _compute_curve(counts: np.ndarray, sums: np.ndarray, percents: Any) -> np.ndarray:
    """Return the risk curve of groups of levels, worst group first, given the size and the sum of each group."""
    at = np.concatenate([[0], np.cumsum(counts)])
    worst = np.asarray(percents) / 100 * at[-1]
    return np.interp(worst, at, np.concatenate([[0], np.cumsum(sums)])) / worst
