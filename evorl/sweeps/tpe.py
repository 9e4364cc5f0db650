"""Tree-structured Parzen estimator (TPE) of Optuna."""

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from evorl import package
from evorl.errors import OptionError, require_int
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import RUNNING, SweepTrial


@dataclass(frozen=True)
class TPE:
    """Tree-structured Parzen estimator (TPE): Optuna's TPESampler on the unit cube.

    The first trial uses the defaults. The cost is ignored. Pending trials count as bad (`constant_liar`), and
    failed trials as having the worst score.

    Args:
        startup_trials: Number of random trials at the start, including the one with the defaults.

    Raises:
        OptionError: If Optuna is not installed.

    Source: Bergstra et al. 2011.
    """

    startup_trials: int = 10

    def __post_init__(self) -> None:
        require_int("startup_trials", self.startup_trials)
        if importlib.util.find_spec("optuna") is None:
            raise OptionError(f"sampler=tpe: the package optuna is missing; {package.install_command('optuna')}")

    def suggest(self, space: SearchSpace, trials: Sequence[SweepTrial], n: int, seed: int) -> Float[np.ndarray, "n d"]:
        """Return the points that Optuna's sampler suggests."""
        import optuna  # pyright: ignore[reportMissingImports]  an extra

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        drawn = int(np.random.SeedSequence([seed, len(trials)]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is experimental in Optuna
            sampler = optuna.samplers.TPESampler(n_startup_trials=self.startup_trials, constant_liar=True, seed=drawn)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            of = optuna.distributions
            axes: dict[str, Any] = {
                f"{i}": of.CategoricalDistribution(range(count)) if count else of.FloatDistribution(0, 1)
                for i, count in enumerate(space.num_categories.tolist())
            }
            study.add_trials(list(_to_optuna_trials(optuna, trials, axes)))
            asked = np.array([list(study.ask(axes).params.values()) for _ in range(n)], float)
        counts = space.num_categories
        found = np.where(counts, (asked + 0.5) / np.maximum(counts, 1), asked)
        if not trials:
            found[:1] = space.center
        return found


def _to_optuna_trials(optuna: Any, trials: Sequence[SweepTrial], axes: dict[str, Any]) -> list[Any]:
    """Convert trials to trials of Optuna."""

    def to_axis(name: str, u: float) -> float:
        choices = getattr(axes[name], "choices", ())
        return min(int(u * len(choices)), len(choices) - 1) if choices else u

    scores = [trial.score for trial in trials if trial.state != RUNNING and np.isfinite(trial.score)]
    states, found = optuna.trial.TrialState, []
    for trial in trials:
        params = {name: to_axis(name, u) for name, u in zip(axes, trial.point, strict=True)}
        if trial.state == RUNNING:
            found.append(optuna.trial.create_trial(state=states.RUNNING, params=params, distributions=axes))
        elif scores:
            value = trial.score if np.isfinite(trial.score) else min(scores)
            found.append(optuna.trial.create_trial(value=value, params=params, distributions=axes))
        else:
            found.append(optuna.trial.create_trial(state=states.FAIL, params=params, distributions=axes))
    return found
