"""PPO on CartPole with Stable-Baselines3 or SBX, for all sides that train it."""

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.evaluation import evaluate_policy  # pyright: ignore[reportMissingImports]

Rate = float | Callable[[float], float]  # of the remaining fraction of the training
SETTINGS = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0}


def make_ppo(seed: int, learning_rate: Rate, clip: Rate, kind: Any = PPO) -> Any:
    """Return PPO, of one of the two libraries, with 8 environments and one thread of PyTorch.

    Args:
        seed: Seed of the environments, the networks and the actions.
        learning_rate: Learning rate.
        clip: Clip range.
        kind: Class of the algorithm.
    """
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", 8, seed=seed)
    networks = {"net_arch": [64, 64]}
    rates = {"learning_rate": learning_rate, "clip_range": clip}
    return kind("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=networks, **rates, **SETTINGS)


def make_evaluator(seed: int, name: str = "CartPole-v1", episodes: int = 10) -> Callable[[Any], float]:
    """Return a function that plays greedy episodes, all at once, and returns their mean return."""
    env = make_vec_env(name, episodes, seed=seed)
    return lambda model: float(evaluate_policy(model, env, episodes, deterministic=True)[0])
