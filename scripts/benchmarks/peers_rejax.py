"""Train rejax's PPO on CartPole, for `benchmark.py J2`, in a separate environment with rejax 0.1.3 and gymnax 0.0.9.

Answers every input line with a line of JSON, the wall and CPU seconds of one training; the first answer is the CPU
seconds of compiling.
"""

import json
import sys
import time

import jax
from rejax import PPO  # pyright: ignore[reportMissingImports]  # not a dependency of evorl

SETTINGS = {
    "env": "CartPole-v1",
    "num_envs": 5,
    "num_steps": 100,
    "num_epochs": 5,
    "num_minibatches": 5,
    "learning_rate": 0.00075,
    "max_grad_norm": 10,
    "total_timesteps": 100_000,
    "eval_freq": 100_000,
    "skip_initial_evaluation": True,
}


def main() -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    algorithm = PPO.create(**SETTINGS).replace(eval_callback=lambda algorithm, state, key: None)
    cpu = time.process_time()
    train = jax.jit(PPO.train).lower(algorithm, jax.random.PRNGKey(0)).compile()
    print(json.dumps(time.process_time() - cpu), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(train(algorithm, jax.random.PRNGKey(0)))
        print(json.dumps((time.perf_counter() - wall, time.process_time() - cpu)), flush=True)


if __name__ == "__main__":
    main()
