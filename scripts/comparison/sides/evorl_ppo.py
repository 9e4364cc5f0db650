"""PPO on CartPole with evorl, with the settings of sb3_ppo.py."""

from typing import Any

from evorl import Adam, Gymnax, OnPolicy
from evorl.agents import PPO

SETTINGS: Any = {"hidden": (64, 64), "discount": 0.98, "gae_lambda": 0.8, "entropy_coef": 0.0, "max_grad_norm": 0.5}
SETTINGS |= {"optimizer": Adam(eps=1e-5)}


def make_ppo(learning_rate: Any = 1e-3, clip: Any = 0.2, env: Any = None) -> OnPolicy:
    """Return PPO with 8 environments.

    Args:
        learning_rate: Learning rate, a schedule or a prior.
        clip: Clip range, a schedule or a prior.
        env: Environment; None for CartPole in JAX.
    """
    return OnPolicy(
        env or Gymnax("CartPole-v1"),
        PPO(learning_rate=learning_rate, clip=clip, **SETTINGS),
        num_envs=8,
        num_steps=32,
        num_epochs=20,
        batch_size=256,
        normalize_observations=False,
        normalize_values=False,
        eval_episodes=10,
    )
