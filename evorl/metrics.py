"""How the metrics of several steps, or of several members, become those of one."""

from typing import Any

import jax.numpy as jnp
import numpy as np

COUNTS = ("env_steps", "episodes", "gradient_steps", "restarts", "bad_rewards")  # these add up; others are means
LEARNED_RETURN = "learned_return"  # of the rewards that are learned from, where a wrapper has changed the task's own
EPISODE_MEANS = (
    "return",
    "return_best",
    "episode_length",
    LEARNED_RETURN,
)  # means that weigh by episodes, as do those of
EPISODE_PREFIX = "episode/"  # which begins the names of what an environment summarizes of its episodes
GROUP_RETURN_PREFIX = "return/"  # which begins those of the returns of a game's groups
RETURN_ERROR = "return_error"  # of an evaluation: the standard error of its return
BEST_PREFIX = "best_"  # begins those of the best policies, evaluated anew at the end: best_return, best_return_error
MEASURED_STEPS = "measured_steps"  # of an evaluation: env steps of what `fit` measures beside it
MEMBERS_PREFIX = "members/"  # begins the names of metrics that stay apart for each member of a population

Metrics = dict[str, Any]


def split_components(values: Metrics, axes: int = 0) -> Metrics:
    """Every number of values, which lead with so many axes, under a name of its own: speed, of a vector place/1."""
    found = {}
    for name, x in values.items():
        numbers = x.reshape(*x.shape[:axes], -1)
        found |= {f"{name}/{i}" if x.ndim > axes else name: numbers[..., i] for i in range(numbers.shape[-1])}
    return found


def is_episode_mean(name: str) -> bool:
    """Whether a metric is a mean over episodes."""
    return name in EPISODE_MEANS or name.startswith((EPISODE_PREFIX, GROUP_RETURN_PREFIX))


def weight_by_episodes(metrics: Metrics) -> Metrics:
    """The metrics of one step as they add up."""
    weight = metrics.get("episodes", 1)
    return {name: values * weight if is_episode_mean(name) else values for name, values in metrics.items()}


def average_sums(sums: Metrics, steps: Any) -> Metrics:
    """Sums of weighted metrics over `steps` >= 1 as the metrics of one: counts stay sums, the others are means."""
    episodes = sums["episodes"].clip(1) if "episodes" in sums else steps

    def average_metric(name: str, total: Any) -> Any:
        if name in COUNTS:
            return total
        return total / (episodes if is_episode_mean(name) else steps)

    return {name: average_metric(name, total) for name, total in sums.items()}


def reduce_steps(metrics: Metrics) -> Metrics:
    """Metrics [steps, ...] as one: counts add up, returns weigh by episodes, the others average.

    On the device, counts stay int32; those of NumPy's add up as int64. Those of members keep their steps.
    """
    steps = len(next(iter(metrics.values())))
    members = {name: values for name, values in metrics.items() if name.startswith(MEMBERS_PREFIX)}
    sums = {name: values.sum(0) for name, values in weight_by_episodes(metrics).items() if name not in members}
    return average_sums(sums, steps) | members


def count_episodes(rounds: list[Metrics], otherwise: int) -> Any:
    """Return how many episodes ended or were cut in rounds of an evaluation, where one does not tell `otherwise`."""
    return sum(np.asarray(one.get("episodes", otherwise)) + one.get("restarts", 0) for one in rounds)


def reduce_rounds(rounds: list[Metrics]) -> Metrics:
    """Return the metrics of several rounds of an evaluation as those of one, on the host.

    Means are taken in float64, in which the mean of equal float32 numbers is that number.
    """
    found = {name: np.stack([metrics[name] for metrics in rounds]) for name in rounds[0]}
    if "episodes" in found:  # returns of a round in which none ended are NaN
        ended = found["episodes"] > 0
        empty = ~ended & ended.any(0)
        found |= {name: np.where(empty, 0, x).astype(x.dtype) for name, x in found.items() if is_episode_mean(name)}
    apiece = found.get(RETURN_ERROR)
    found = reduce_steps({name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in found.items()})
    found |= {name: values.mean(0) for name, values in found.items() if name.startswith(MEMBERS_PREFIX)}
    if apiece is not None:  # of a mean that weighs by episodes
        weight = [metrics.get("episodes", np.ones(())) for metrics in rounds]
        squares = sum(np.square(n * np.where(n > 0, error, 0)) for n, error in zip(weight, apiece, strict=True))
        found[RETURN_ERROR] = np.where(sum(weight) > 0, np.sqrt(squares) / np.maximum(sum(weight), 1), np.inf)
    return {name: np.asarray(values) for name, values in found.items()}


def reduce_members(metrics: Metrics) -> Metrics:
    """Metrics [n, ...] of n members as those of a population, without the members that are NaN.

    Those that stay apart for the members of a member are left out.
    """
    episodes = metrics.get("episodes", jnp.ones(()))

    def reduce_metric(name: str, values: Any) -> Any:
        if name in COUNTS:
            return values.sum()
        weight = ~jnp.isnan(values) * (episodes if is_episode_mean(name) else 1.0)
        return (jnp.nan_to_num(values) * weight).sum() / jnp.maximum(weight.sum(), 1e-9)

    return {
        name: reduce_metric(name, values) for name, values in metrics.items() if not name.startswith(MEMBERS_PREFIX)
    }
