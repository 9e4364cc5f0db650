"""RL agents with evorl."""

from typing import Any

import jax
from jax_rounds import call
from side import Round, serve

from evorl import Gymnax, OnPolicy
from evorl.agents import PPO

REJAX_PPO = PPO(hidden=(64, 64), activation="swish", learning_rate=7.5e-4, critic_weight=0.5)


def ppo_seeds(size: int) -> Round:
    """PPO on CartPole, `size` seeds in one program, with the sizes of rejax."""
    steps = max(100_000 // size, 5_000)
    workflow = OnPolicy(
        Gymnax("CartPole-v1"),
        REJAX_PPO,
        num_envs=5,
        num_steps=100,
        num_epochs=5,
        batch_size=100,
        normalize_observations=False,
    )

    def train(key: jax.Array) -> Any:
        key_init, key_steps = jax.random.split(key)
        keys = jax.random.split(key_steps, steps // workflow.num_transitions)
        return jax.lax.scan(workflow.step, workflow.init(key_init), keys)[0]

    return call(lambda key: jax.vmap(train)(jax.random.split(key, size)), steps * size)


if __name__ == "__main__":
    serve({"ppo_seeds": ppo_seeds}, "jax")
