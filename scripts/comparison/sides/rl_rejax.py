"""PPO and DQN with rejax."""

import jax
import rejax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from jax_rounds import call
from side import Round, serve

PPO = {"num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5, "learning_rate": 7.5e-4}
PPO |= {"max_grad_norm": 10, "skip_initial_evaluation": True}


def ppo_seeds(size: int) -> Round:
    steps = max(100_000 // size, 5_000)
    algorithm = rejax.PPO.create(env="CartPole-v1", total_timesteps=steps, eval_freq=steps, **PPO)
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: None)
    train = jax.vmap(rejax.PPO.train, (None, 0))
    return call(lambda key: train(algorithm, jax.random.split(key, size)), steps * size, legacy_key=True)


if __name__ == "__main__":
    serve({"ppo_seeds": ppo_seeds}, "rejax", "gymnax", "jax")
