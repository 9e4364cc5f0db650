"""Aggregation of metrics over steps, evaluation rounds and members."""

from typing import Any

import jax.numpy as jnp
import numpy as np

COUNTS = ("env_steps", "episodes", "gradient_steps", "restarts", "bad_rewards")  # these are summed, others averaged
LEARNED_RETURN = "learned_return"  # return of the rewards for learning, if a wrapper changed those of the task
RETURN_BEST = "return_best"  # of the best individual, NaN if no episode ended; of several steps the maximum
EPISODE_MEANS = (
    "return",
    "episode_length",
    LEARNED_RETURN,
)  # means weighted by episodes, like all names with the next two prefixes
EPISODE_PREFIX = "episode/"  # prefix of an environment's own episode statistics
GROUP_RETURN_PREFIX = "return/"  # prefix of the returns of the groups of a game
RETURN_ERROR = "return_error"  # standard error of the return of an evaluation
RETURN_DOF = "return_dof"  # degrees of freedom of this error, not in rows
BEST_PREFIX = "best_"  # prefix for the best policy, evaluated again at the end: best_return, best_return_error
MEASURED_STEPS = "measured_steps"  # env steps of an evaluation outside of its episodes
MEMBERS_PREFIX = "members/"  # prefix of metrics listed by member of a population

Metrics = dict[str, Any]


def split_components(values: Metrics, axes: int = 0) -> Metrics:
    """Split arrays into scalars, each under its own name: a scalar `speed`, a vector as `place/0`, `place/1`, ...

    The first `axes` axes of all values are batch axes, which stay.
    """
    found = {}
    for name, x in values.items():
        numbers = x.reshape(*x.shape[:axes], -1)
        found |= {f"{name}/{i}" if x.ndim > axes else name: numbers[..., i] for i in range(numbers.shape[-1])}
    return found


def is_episode_mean(name: str) -> bool:
    """Return whether a metric is a mean over episodes."""
    return name in EPISODE_MEANS or name.startswith((EPISODE_PREFIX, GROUP_RETURN_PREFIX))


def weight_by_episodes(metrics: Metrics) -> Metrics:
    """Multiply the episode means of one step by its number of episodes, so that steps can be added up.

    The standard error of the return becomes the variance of the sum of the returns.
    """
    weight = metrics.get("episodes", 1)
    sums = {name: values * weight if is_episode_mean(name) else values for name, values in metrics.items()}
    if RETURN_ERROR in sums:
        error = sums[RETURN_ERROR]
        sums[RETURN_ERROR] = (weight * error.__array_namespace__().where(weight > 0, error, 0)) ** 2
    return sums


def average_sums(sums: Metrics, steps: Any) -> Metrics:
    """Convert sums of weighted metrics over `steps` >= 1 to metrics: counts stay sums, the others become means."""
    episodes = sums["episodes"].clip(1) if "episodes" in sums else steps

    def average_metric(name: str, total: Any) -> Any:
        if name in (*COUNTS, RETURN_DOF, MEASURED_STEPS):
            return total
        if name == RETURN_ERROR:
            xp = total.__array_namespace__()
            return xp.where(sums.get("episodes", 1) > 0, xp.sqrt(total) / episodes, xp.inf)
        return total / (episodes if is_episode_mean(name) else steps)

    return {name: average_metric(name, total) for name, total in sums.items()}


def reduce_steps(metrics: Metrics) -> Metrics:
    """Reduce metrics [steps, ...]: sum counts, weight episode means by episodes, average the others.

    The best return is the maximum over the steps, of those that are not NaN. The standard error of the return
    becomes that of the mean over all episodes. On the device, counts stay int32; in NumPy, they add up as int64.
    Metrics with MEMBERS_PREFIX keep the axis of steps.
    """
    steps = len(next(iter(metrics.values())))
    members = {name: values for name, values in metrics.items() if name.startswith(MEMBERS_PREFIX)}
    sums = {name: values.sum(0) for name, values in weight_by_episodes(metrics).items() if name not in members}
    found = average_sums(sums, steps) | members
    if RETURN_BEST in metrics:
        best = metrics[RETURN_BEST]
        xp = best.__array_namespace__()
        known = ~xp.isnan(best)
        found[RETURN_BEST] = xp.where(known.any(0), xp.where(known, best, -xp.inf).max(0), xp.nan).astype(best.dtype)
    return found


def count_evaluation_steps(metrics: Metrics) -> Any:
    """Return the env steps of one or several evaluations, of the shape of the metrics, or 0 if none are reported."""
    return metrics.get("episodes", 0) * metrics.get("episode_length", 0) + metrics.get(MEASURED_STEPS, 0)


def join_measures(metrics: Metrics, measured: Metrics) -> Metrics:
    """Return the metrics of an evaluation with those of additional measurements, whose env steps are added."""
    both = [one[MEASURED_STEPS] for one in (metrics, measured) if MEASURED_STEPS in one]
    return metrics | measured | ({MEASURED_STEPS: sum(both[1:], both[0])} if both else {})


def count_episodes(rounds: list[Metrics], otherwise: int) -> Any:
    """Return the number of episodes that ended or were cut in the rounds of an evaluation.

    A round without the metric "episodes" counts as `otherwise` episodes.
    """
    return sum(np.asarray(one.get("episodes", otherwise)) + one.get("restarts", 0) for one in rounds)


def reduce_rounds(rounds: list[Metrics]) -> Metrics:
    """Reduce the metrics of several rounds of an evaluation to those of one, on the host.

    Means are computed in float64, so that the mean of equal float32 numbers is exactly that number. The standard
    error of the return combines those of the rounds; if each has one episode, it is estimated from the
    differences between rounds.
    """
    found = {name: np.stack([metrics[name] for metrics in rounds]) for name in rounds[0]}
    if "episodes" in found:  # returns are NaN in a round in which no episode ended
        ended = found["episodes"] > 0
        empty = ~ended & ended.any(0)
        found |= {name: np.where(empty, 0, x).astype(x.dtype) for name, x in found.items() if is_episode_mean(name)}
    found = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in found.items()}
    episodes, returns = found.get("episodes", np.ones(len(rounds))), found["return"]
    found = reduce_steps(found)
    found |= {name: values.mean(0) for name, values in found.items() if name.startswith(MEMBERS_PREFIX)}
    others = len(rounds) - 1
    single = (episodes == 1).all(0) & (others > 0)
    if RETURN_ERROR in found:
        with np.errstate(invalid="ignore"):  # infinite returns
            found[RETURN_ERROR] = np.where(single, np.sqrt(returns.var(0) / max(others, 1)), found[RETURN_ERROR])
    if RETURN_DOF in found:
        found[RETURN_DOF] = np.where(single, others, found[RETURN_DOF])
    return {name: np.asarray(values) for name, values in found.items()}


def reduce_members(metrics: Metrics) -> Metrics:
    """Reduce metrics [n, ...] of n members to those of the population, without NaN values.

    Metrics with MEMBERS_PREFIX, which describe members within a member, are left out.
    """
    episodes = metrics.get("episodes", jnp.ones(()))

    def reduce_metric(name: str, values: Any) -> Any:
        if name in (*COUNTS, MEASURED_STEPS):
            return values.sum()
        weight = ~jnp.isnan(values) * (episodes if is_episode_mean(name) else 1.0)
        return (jnp.nan_to_num(values) * weight).sum() / jnp.maximum(weight.sum(), 1e-9)

    return {
        name: reduce_metric(name, values) for name, values in metrics.items() if not name.startswith(MEMBERS_PREFIX)
    }
