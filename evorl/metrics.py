"""How the metrics of several steps become those of one."""

from typing import Any

COUNTS = ("env_steps", "episodes", "gradient_steps")  # these add up; every other metric is a mean
OF_EPISODES = ("return", "return_best", "episode_length")  # means that weigh by episodes


def reduce(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics [steps, ...] as one: counts add up, returns weigh by episodes, the others average.

    On the device, counts stay int32; those of NumPy's add up as int64.
    """
    weight = metrics.get("episodes")

    def one(name: str, values: Any) -> Any:
        if name in COUNTS:
            return values.sum(0)
        if name in OF_EPISODES and weight is not None:
            return (values * weight).sum(0) / weight.sum(0).clip(1)
        return values.mean(0)

    return {name: one(name, values) for name, values in metrics.items()}
