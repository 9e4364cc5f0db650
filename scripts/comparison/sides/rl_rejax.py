"""PPO and DQN with rejax."""

from functools import partial
from typing import Any

import jax
import rejax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from jax_rounds import call
from side import Round, serve

PPO = {"num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5, "learning_rate": 7.5e-4}
PPO |= {"max_grad_norm": 10, "skip_initial_evaluation": True}


def ppo_seeds(size: int, env: str = "CartPole-v1") -> Round:
    steps = max(100_000 // size, 5_000)
    algorithm = rejax.PPO.create(env=env, total_timesteps=steps, eval_freq=steps, **PPO)
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: None)
    train = jax.vmap(rejax.PPO.train, (None, 0))
    return call(lambda key: train(algorithm, jax.random.split(key, size)), steps * size, legacy_key=True)


def make_dqn(steps: int) -> Any:
    """Return DQN on CartPole; epsilon falls for half of the steps."""
    settings = {"num_envs": 10, "num_epochs": 5, "batch_size": 100, "buffer_size": 10_000, "fill_buffer": 1_000}
    settings |= {"learning_rate": 1e-3, "polyak": 0.99, "ddqn": False, "eps_end": 0.05, "exploration_fraction": 0.5}
    networks = {"agent": "QNetwork", "agent_kwargs": {"activation": "relu"}}
    algorithm = rejax.DQN.create(
        env="CartPole-v1",
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        **settings,
        **networks,
    )
    return algorithm.replace(eval_callback=lambda algorithm, state, key: None)


def dqn(size: int) -> Round:
    """DQN on CartPole for 10,000 steps from scratch."""
    del size
    algorithm = make_dqn(10_000)
    return call(lambda key: rejax.DQN.train(algorithm, key), 10_000, legacy_key=True)


def dqn_seeds(size: int) -> Round:
    """DQN on CartPole for 4,000 steps from scratch, `size` seeds in one program."""
    algorithm, train = make_dqn(4_000), jax.vmap(rejax.DQN.train, (None, 0))
    return call(lambda key: train(algorithm, jax.random.split(key, size)), 4_000 * size, legacy_key=True)


if __name__ == "__main__":
    jobs = {f"ppo_{env}": partial(ppo_seeds, env=env) for env in ("Acrobot-v1", "Breakout-MinAtar")}
    serve(jobs | {"ppo_seeds": ppo_seeds, "dqn": dqn, "dqn_seeds": dqn_seeds}, "rejax", "gymnax", "jax")
