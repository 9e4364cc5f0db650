"""Train rejax 0.1.3 with its published settings (its configs/gymnax), at the budgets of experiments.py.

Run it in a separate environment with rejax 0.1.3, gymnax 0.0.9 and SciPy. Each case has eight seeds, and 128 episodes
of each after the last step.

python scripts/learning/peers_learning.py                          all
python scripts/learning/peers_learning.py ppo/CartPole-v1
"""

import copy
import sys
import time

import jax
import numpy as np
import rejax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from rejax.evaluate import evaluate  # pyright: ignore[reportMissingImports]
from scipy import stats  # evorl, which has the same interval, is not installed there

PPO = {"num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5, "learning_rate": 7.5e-4}
PPO |= {"max_grad_norm": 0.5, "gamma": 0.99, "ent_coef": 0.01, "agent_kwargs": {"activation": "tanh"}}
PENDULUM = {"num_envs": 100, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10, "learning_rate": 1e-3}
PENDULUM |= {"max_grad_norm": 10, "gamma": 0.995, "ent_coef": 0.0, "normalize_observations": True}
DQN = {"agent": "DuelingQNetwork", "num_envs": 10, "batch_size": 100, "max_grad_norm": 10, "learning_rate": 1e-3}
DQN |= {"num_epochs": 5, "eps_end": 0.05, "exploration_fraction": 0.5, "ddqn": True}
OFF = {"num_envs": 1, "buffer_size": 10_000, "num_epochs": 1, "gamma": 0.99, "normalize_observations": True}
SWISH = {"activation": "swish"}
CASES = {  # the class, the budget, and settings other than rejax's defaults
    "ppo/CartPole-v1": ("PPO", 150_000, PPO),
    "ppo/Acrobot-v1": ("PPO", 300_000, PPO | {"normalize_observations": True}),
    "ppo/Pendulum-v1": ("PPO", 500_000, PENDULUM | {"agent_kwargs": SWISH}),
    "dqn/CartPole-v1": ("DQN", 200_000, DQN | {"buffer_size": 50_000, "fill_buffer": 5_000, "polyak": 0.98}),
    "dqn/Acrobot-v1": ("DQN", 100_000, DQN | {"buffer_size": 10_000, "fill_buffer": 1000, "target_update_freq": 200}),
    "sac/Pendulum-v1": ("SAC", 30_000, OFF | {"fill_buffer": 256, "learning_rate": 0.01, "polyak": 0.98}),
    "td3/Pendulum-v1": ("TD3", 30_000, OFF | {"fill_buffer": 1000, "batch_size": 100, "polyak": 0.95}),
}
MORE = {  # settings of a single case
    "sac/Pendulum-v1": {"agent_kwargs": SWISH, "target_entropy_ratio": None, "batch_size": 256},
    "td3/Pendulum-v1": {"actor_kwargs": SWISH, "critic_kwargs": SWISH, "exploration_noise": 0.3, "max_grad_norm": 100},
    "dqn/CartPole-v1": {"agent_kwargs": SWISH},
    "dqn/Acrobot-v1": {"agent_kwargs": SWISH},
}


def returns(case: str) -> np.ndarray:
    """Return the mean return of each of eight seeds."""
    kind, steps, settings = CASES[case]
    settings = settings | MORE.get(case, {})
    settings |= {"env": case.partition("/")[2], "total_timesteps": steps, "eval_freq": steps}
    own = {name: copy.deepcopy(value) for name, value in settings.items()}  # rejax modifies its settings
    algorithm = getattr(rejax, kind).create(**own, skip_initial_evaluation=True)
    limit = algorithm.env_params.max_steps_in_episode

    def after(algorithm, state, key):
        return evaluate(algorithm.make_act(state), key, algorithm.env, algorithm.env_params, 128, limit)[1].mean()

    algorithm = algorithm.replace(eval_callback=after)
    train = jax.jit(lambda keys: jax.lax.map(lambda key: type(algorithm).train(algorithm, key)[1], keys))
    return np.asarray(train(jax.random.split(jax.random.PRNGKey(0), 8))).reshape(8)


def main() -> None:
    for case in sys.argv[1:] or CASES:
        started = time.perf_counter()
        found = returns(case)
        low, high = stats.ttest_1samp(found, 0).confidence_interval()
        mean = f"{found.mean():.1f} [{low:.1f}, {high:.1f}]"
        cells = [case, f"{CASES[case][1]:,}", mean, f"{stats.trim_mean(found, 0.25):.1f}", f"{found.min():.1f}"]
        print(f"| {' | '.join(cells)} | {time.perf_counter() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
