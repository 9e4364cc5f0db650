"""Search of hyperparameters with Optuna."""

from typing import Any

import optuna  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from sb3_ppo import make_evaluator, make_ppo
from side import Round, serve

TRIALS, TRIAL_STEPS = 16, 10_240


def search_ppo(size: int) -> Round:
    """Search of PPO's learning rate and clip range with TPE, one trial after the other."""
    del size
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def one(i: int) -> dict[str, float]:
        def train(trial: Any) -> float:
            seed = TRIALS * i + trial.number
            learning_rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
            model = make_ppo(seed, learning_rate, trial.suggest_float("clip", 0.1, 0.4))
            model.learn(TRIAL_STEPS, log_interval=None)
            return make_evaluator(1_000_000 + seed)(model)

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=i))
        study.optimize(train, TRIALS)
        return {"work": TRIALS * TRIAL_STEPS, "score": study.best_value}

    return one


if __name__ == "__main__":
    serve({"search_ppo": search_ppo}, "optuna", "stable_baselines3", "torch", "gymnasium")
