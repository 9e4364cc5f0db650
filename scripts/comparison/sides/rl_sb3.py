"""RL agents with Stable-Baselines3, and with SBX, which has the same interface and learners in JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sbx  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
import stable_baselines3 as sb3  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
import torch  # pyright: ignore[reportMissingImports]
from sb3_ppo import make_evaluator, make_ppo
from side import Round, serve
from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.noise import NormalActionNoise  # pyright: ignore[reportMissingImports]

LEARNING_RATE = 3e-4
OFF_POLICY = {"batch_size": 256, "learning_starts": 1_000, "train_freq": 1, "gradient_steps": 1}


def ppo(size: int, library: Any) -> Round:
    """PPO on CartPole: the training continues by 20,480 steps in each round."""
    del size
    return train_on(make_ppo(0, 1e-3, 0.2, library.PPO), 20_480)


def sac(size: int, library: Any) -> Round:
    """SAC on HalfCheetah-v5, 500 steps and updates in each round."""
    del size
    return train_on(make_off_policy(library.SAC, "HalfCheetah-v5"), 500, 1_000)


def td3(size: int, library: Any) -> Round:
    """TD3 on Hopper-v5, 500 steps and updates in each round."""
    del size
    return train_on(make_td3(library, "Hopper-v5"), 500, 1_000)


def make_td3(library: Any, env: str, seed: int = 0, learning_rate: float = LEARNING_RATE) -> Any:
    """Return TD3 with the exploration noise of the paper."""
    size = make_vec_env(env, 1).action_space.shape
    noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    return make_off_policy(library.TD3, env, seed, learning_rate, action_noise=noise)


def make_off_policy(kind: Any, env: str, seed: int = 0, learning_rate: float = LEARNING_RATE, **settings: Any) -> Any:
    """Return an off-policy algorithm on one environment."""
    networks = {"net_arch": [256, 256]}
    return kind(
        "MlpPolicy",
        make_vec_env(env, 1, seed=seed),
        learning_rate,
        seed=seed,
        device="cpu",
        policy_kwargs=networks,
        **OFF_POLICY,
        **settings,
    )


def train_on(model: Any, steps: int, random_steps: int = 0) -> Round:
    """Return rounds that continue the training by a number of steps, after the random steps of round 0."""

    def one(i: int) -> dict[str, float]:
        model.learn(steps + random_steps * (i == 0), reset_num_timesteps=i == 0, log_interval=None)
        return {"work": steps}

    return one


def dqn(size: int, library: Any) -> Round:
    """DQN on CartPole for 10,000 steps from scratch, with the sizes of rejax."""
    del size
    torch.set_num_threads(1)
    exploration = {"exploration_fraction": 0.5, "exploration_final_eps": 0.05}
    settings = exploration | {"learning_rate": 1e-3, "buffer_size": 10_000, "learning_starts": 1_000, "batch_size": 100}
    settings |= {"train_freq": 1, "gradient_steps": 5, "tau": 0.01, "target_update_interval": 10}

    def one(i: int) -> dict[str, float]:
        env = make_vec_env("CartPole-v1", 10, seed=i)
        networks = {"net_arch": [64, 64]}
        model = library.DQN("MlpPolicy", env, seed=i, device="cpu", policy_kwargs=networks, **settings)
        model.learn(10_000, log_interval=None)
        return {"work": 10_000}

    return one


class StopAtGoal(BaseCallback):
    """Evaluate at regular numbers of steps, before the next rollout, and stop the training at the goal.

    A policy that has only collected random steps is not evaluated.
    """

    def __init__(self, evaluate: Callable[[Any], float], goal: float, every: int) -> None:
        super().__init__()
        self.evaluate, self.goal, self.every, self.score, self.steps = evaluate, goal, every, -np.inf, 0

    def _on_rollout_start(self) -> None:
        last = max(self.steps, getattr(self.model, "learning_starts", 0))
        if self.num_timesteps > last and self.num_timesteps % self.every == 0:
            self.score, self.steps = self.evaluate(self.model), self.num_timesteps

    def _on_training_end(self) -> None:
        if self.score < self.goal:
            self._on_rollout_start()

    def _on_step(self) -> bool:
        return self.score < self.goal


def train_to_goal(model: Any, evaluate: Callable[[Any], float], goal: float, every: int, most: int) -> dict[str, float]:
    """Train until an evaluation reaches the goal, and return the steps and the last score.

    Args:
        model: Algorithm.
        evaluate: Function of the algorithm; returns a mean return.
        goal: Mean return that ends the training.
        every: Number of env steps between evaluations.
        most: Number of evaluations after which the training ends in any case.
    """
    watch = StopAtGoal(evaluate, goal, every)
    model.learn(most * every, watch, log_interval=None)
    return {"work": watch.steps, "score": watch.score}


def ppo_goal(size: int, library: Any) -> Round:
    """PPO on CartPole from scratch until 10 greedy episodes have a mean return of 475."""
    del size

    def one(i: int) -> dict[str, float]:
        model = make_ppo(i, lambda left: 1e-3 * left, lambda left: 0.2 * left, library.PPO)
        return train_to_goal(model, make_evaluator(1_000 + i), 475, 2_048, 98)

    return one


def ppo_hopper_goal(size: int, library: Any) -> Round:
    """PPO on Hopper-v5 from scratch until 10 greedy episodes have a mean return of 1,000."""
    del size
    torch.set_num_threads(1)
    settings = {"n_steps": 256, "batch_size": 64, "n_epochs": 10, "vf_coef": 0.5, "ent_coef": 0.0}

    def one(i: int) -> dict[str, float]:
        env, networks = make_vec_env("Hopper-v5", 8, seed=i), {"net_arch": [64, 64]}
        model = library.PPO("MlpPolicy", env, seed=i, device="cpu", policy_kwargs=networks, **settings)
        return train_to_goal(model, make_evaluator(1_000 + i, "Hopper-v5"), 1_000, 10_240, 50)

    return one


def td3_goal(size: int, library: Any) -> Round:
    """TD3 on HalfCheetah-v5 from scratch until 5 greedy episodes have a mean return of 300."""
    del size

    def one(i: int) -> dict[str, float]:
        model = make_td3(library, "HalfCheetah-v5", i, 1e-3)
        return train_to_goal(model, make_evaluator(1_000 + i, "HalfCheetah-v5", 5), 300, 1_000, 50)

    return one


def sac_goal(size: int, library: Any) -> Round:
    """SAC on HalfCheetah-v5 from scratch until 5 greedy episodes have a mean return of 1,000."""
    del size

    def one(i: int) -> dict[str, float]:
        model = make_off_policy(library.SAC, "HalfCheetah-v5", i)
        return train_to_goal(model, make_evaluator(1_000 + i, "HalfCheetah-v5", 5), 1_000, 1_000, 50)

    return one


if __name__ == "__main__":
    jobs = {"ppo": ppo, "sac": sac, "td3": td3, "dqn": dqn, "ppo_goal": ppo_goal}
    jobs |= {"ppo_hopper_goal": ppo_hopper_goal, "td3_goal": td3_goal, "sac_goal": sac_goal}
    of_sbx = {f"{name}_sbx": partial(job, library=sbx) for name, job in jobs.items()}
    of_sb3 = {name: partial(job, library=sb3) for name, job in jobs.items()}
    serve(of_sb3 | of_sbx, "stable_baselines3", "sbx-rl", "torch", "jax", "gymnasium")
