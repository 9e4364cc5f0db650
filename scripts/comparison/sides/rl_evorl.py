"""RL agents with evorl."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from evorl_ppo import make_ppo
from evorl_training import train_from_scratch
from jax_rounds import call, run_program, scan_steps
from peers_updates import td3_block
from replay_sizes import ADDS, BATCH, CAPACITY, make_rows
from side import Round, serve

from evorl import Gymnax, HostEnv, Linear, MuJoCo, OffPolicy, OnPolicy
from evorl.agents import DQN, PPO, SAC, TD3
from evorl.replay.ring import RingBuffer
from evorl.workflows.base import max_env_steps

REJAX_PPO = PPO(hidden=(64, 64), activation="swish", learning_rate=7.5e-4, value_coef=0.5)


def make_ppo_seeds(env: str = "CartPole-v1") -> OnPolicy:
    """Return PPO with the sizes of rejax."""
    return OnPolicy(
        Gymnax(env),
        REJAX_PPO,
        num_envs=5,
        num_steps=100,
        num_epochs=5,
        batch_size=100,
        normalize_observations=False,
    )


def ppo_seeds(size: int, env: str = "CartPole-v1") -> Round:
    """PPO from scratch, `size` seeds in one program, with the sizes of rejax."""
    workflow, steps = make_ppo_seeds(env), max(100_000 // size, 5_000)

    def train(key: jax.Array) -> Any:
        return train_from_scratch(workflow, key, steps // workflow.num_transitions)[0]

    return call(lambda key: jax.vmap(train)(jax.random.split(key, size)), steps * size)


def ppo(size: int, env: Any = None) -> Round:
    """PPO on CartPole: the training continues by 20,480 steps in each round."""
    del size
    return train_on(make_ppo(env=env), 80, 20_480)


def sac(size: int) -> Round:
    """SAC on HalfCheetah-v5, 500 steps and updates in each round."""
    del size
    return train_on(make_sac(), 500, 500)


def make_sac() -> OffPolicy:
    """Return SAC on HalfCheetah-v5, with one update of all networks for each step."""
    return OffPolicy(MuJoCo("HalfCheetah-v5"), SAC(), num_envs=1, num_steps=1, num_updates=1, policy_delay=1)


def td3(size: int) -> Round:
    """TD3 on Hopper-v5, 500 steps and updates in each round: two steps, then two updates."""
    del size
    return train_on(make_td3("Hopper-v5"), 250, 500)


def make_td3(env: str, **options: Any) -> OffPolicy:
    """Return TD3 on a task of MuJoCo, with two updates of the critics for two steps."""
    return OffPolicy(MuJoCo(env), TD3(**options), num_envs=1, num_steps=2, num_updates=2, policy_delay=2)


def train_on(workflow: Any, iterations: int, work: float) -> Round:
    """Return rounds that continue the training by a number of iterations."""
    return scan_steps(workflow.step, jax.jit(workflow.init)(jax.random.key(0)), iterations, work)


def train_dqn(key: jax.Array, steps: int) -> Any:
    """Return the last state of DQN on CartPole from scratch, with the sizes of rejax; epsilon falls for half of it."""
    workflow = OffPolicy(
        Gymnax("CartPole-v1"),
        DQN(hidden=(64, 64), double=False, learning_rate=1e-3, tau=0.01, epsilon=Linear(1.0, 0.05, over=steps / 2)),
        num_envs=10,
        num_steps=1,
        num_updates=5,
        policy_delay=1,
        batch_size=100,
        capacity=10_000,
        random_steps=1_000,
    )
    return train_from_scratch(workflow, key, (steps - 1_000) // 10 + 1)[0]


def dqn(size: int) -> Round:
    """DQN on CartPole for 10,000 steps from scratch."""
    del size
    return call(lambda key: train_dqn(key, 10_000), 10_000)


def dqn_seeds(size: int) -> Round:
    """DQN on CartPole for 4,000 steps from scratch, `size` seeds in one program."""
    return call(lambda key: jax.vmap(lambda key: train_dqn(key, 4_000))(jax.random.split(key, size)), 4_000 * size)


def ppo_goal(size: int, env: Any = None) -> Round:
    """PPO on CartPole from scratch until 10 greedy episodes have a mean return of 475."""
    del size
    over = 98 * 2_048.0
    return train_to_goal(make_ppo(Linear(1e-3, 0.0, over=over), Linear(0.2, 0.0, over=over), env), 475, 8, 2_048, 98)


def ppo_hopper_goal(size: int) -> Round:
    """PPO on Hopper-v5 from scratch until 10 greedy episodes have a mean return of 1,000."""
    del size
    plain: Any = make_ppo(3e-4, env=MuJoCo("Hopper-v5"))
    agent = replace(plain.agent, distribution="normal", discount=0.99, gae_lambda=0.95)
    workflow = replace(plain, agent=agent, num_steps=256, num_epochs=10, batch_size=64)
    return train_to_goal(workflow, 1_000, 5, 10_240, 50)


def td3_goal(size: int) -> Round:
    """TD3 on HalfCheetah-v5 from scratch until 5 greedy episodes have a mean return of 300."""
    del size
    workflow = make_td3("HalfCheetah-v5", actor_lr=1e-3, critic_lr=1e-3)
    return train_to_goal(replace(workflow, eval_episodes=5), 300, 500, 1_000, 49)


def sac_goal(size: int) -> Round:
    """SAC on HalfCheetah-v5 from scratch until 5 greedy episodes have a mean return of 1,000."""
    del size
    return train_to_goal(replace(make_sac(), eval_episodes=5), 1_000, 1_000, 1_000, 49)


def train_to_goal(workflow: Any, goal: float, iterations: int, steps: int, most: int) -> Round:
    """Return rounds that train from scratch to a mean return of greedy episodes.

    Args:
        workflow: Workflow; an evaluation plays its `eval_episodes`.
        goal: Mean return that ends a round.
        iterations: Number of iterations before each evaluation.
        steps: Number of env steps of these iterations.
        most: Number of evaluations after which a round ends in any case.
    """
    first, later = max_env_steps(workflow)
    extra = int(first - later)  # the random steps of the first iteration

    @jax.jit
    def train(key: jax.Array) -> Any:
        key_init, key = jax.random.split(key)

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, state, _ = loop
            key_steps, key_evaluation = jax.random.split(jax.random.fold_in(key, i))
            state = jax.lax.scan(workflow.step, state, jax.random.split(key_steps, iterations))[0]
            return i + 1, state, workflow.evaluate(state, key_evaluation)["return"]

        def is_unfinished(loop: tuple[Any, ...]) -> jax.Array:
            return (loop[2] < goal) & (loop[0] < most)

        start = jnp.int32(0), workflow.init(key_init), jnp.float32(-jnp.inf)
        i, _, score = jax.lax.while_loop(is_unfinished, step, start)
        return i * steps + extra, score

    def one(i: int) -> dict[str, float]:
        steps, score = train(jax.random.key(i))
        return {"work": int(steps), "score": float(score)}

    return one


def replay(size: int) -> Round:
    """Add `size` rows to a full replay buffer, then sample a batch."""
    buffer = RingBuffer.empty(CAPACITY, jax.tree.map(lambda x: x[0], make_rows(1)))
    full, rows = replace(buffer, size=jnp.int32(CAPACITY)), make_rows(size)

    def step(carry: Any, key: jax.Array) -> Any:
        buffer, total = carry
        buffer = buffer.add(rows, jnp.ones(size, bool))
        return (buffer, jax.tree.map(jnp.add, total, buffer.sample(key, (BATCH,)).rows)), None

    return scan_steps(step, (full, make_rows(BATCH)), ADDS, ADDS)


def td3_updates(size: int) -> Round:
    return run_program(td3_block(size))


if __name__ == "__main__":
    host = HostEnv("CartPole-v1")
    jobs = {
        "ppo_seeds": ppo_seeds,
        "ppo": ppo,
        "sac": sac,
        "td3": td3,
        "dqn": dqn,
        "dqn_seeds": dqn_seeds,
        "ppo_goal": ppo_goal,
        "ppo_hopper_goal": ppo_hopper_goal,
        "td3_goal": td3_goal,
        "sac_goal": sac_goal,
        "replay": replay,
        "td3_updates": td3_updates,
    }
    jobs |= {f"ppo_{env}": partial(ppo_seeds, env=env) for env in ("Acrobot-v1", "Breakout-MinAtar")}
    jobs |= {"ppo_host": partial(ppo, env=host), "ppo_goal_host": partial(ppo_goal, env=host)}
    serve(jobs, "jax", "gymnasium", "mujoco")
