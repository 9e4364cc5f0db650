"""Compare the speed of an environment adapter with that of the raw library, with random actions.

pip install -e ".[suites,games]" && python scripts/benchmarks/adapters.py [NAME ...] [--steps 200] [--rounds 5]

NAME is written as in "env=NAME env.option=value"; the default is one environment of each suite. Both sides run in a
jitted scan over 1 and over 128 environments. They play the same actions from one reset each, and do not reset again.
They take turns, and the best round of each counts. The seconds of compiling are those of the adapter's reset and step.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.games.agent_groups import split_groups
from evorl.training.configuration import config
from evorl.training.configuration.parts import make_task

NAMES = (
    "gymnax/CartPole-v1",
    "gymnax/Breakout-MinAtar",
    "playground/CartpoleBalance",
    "jumanji/Snake-v1",
    "jumanji/Game2048-v1",
    "craftax/Craftax-Classic-Symbolic-v1",
    "pgx/2048",
    "xland/MiniGrid-DoorKey-8x8",
    "navix/Navix-Empty-8x8-v0",
    "pgx_game/connect_four",
    "jaxmarl/coin_game",
    "jaxmarl/HeuristicEnemySMAX env.map=3m",
)
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def raw(suite: str, env: Any) -> tuple[Callable[[Any], Any], Step]:
    """Return the library's own reset(key) -> state and step(key, state, action) -> (state, outputs)."""
    params, inner = env.default_params, env.env
    match suite:
        case "gymnax" | "craftax":

            def step(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
                obs, state, reward, done, _ = inner.step_env(key, state, action, params)
                return state, (obs, reward, done)

            return lambda key: inner.reset_env(key, params)[1], step
        case "playground":
            return inner.reset, lambda key, state, action: (
                after := inner.step(state, action),
                (after.obs, after.reward, after.done),
            )
        case "jumanji":
            return lambda key: inner.reset(key)[0], lambda key, state, action: inner.step(state, action)
        case "pgx":
            return inner.init, lambda key, state, action: (
                after := inner.step(state, action, key),
                (after.observation, after.legal_action_mask, after.rewards, after.terminated, after.truncated),
            )
        case "pgx_game":
            return inner.init, lambda key, state, action: (
                after := inner.step(state, action["player"][state.current_player], key),
                (after.observation, after.legal_action_mask, after.rewards, after.terminated, after.truncated),
            )
        case "jaxmarl":

            def steps(key: Any, state: Any, action: Any) -> tuple[Any, Any]:
                obs, state, reward, done, _ = inner.step_env(key, state, split_groups(env.agents, action))
                return state, (obs, reward, done)

            return lambda key: inner.reset(key)[1], steps
        case "xland":
            made = env._env_and_params[1]
            return lambda key: inner.reset(made, key), lambda key, state, action: (
                after := inner.step(made, state, action),
                (after.observation, after.reward, after.discount),
            )
        case "navix":
            return inner.reset, lambda key, state, action: (
                after := inner._step(state, action),
                (after.observation, after.reward, after.step_type),
            )
    raise ValueError(suite)


def scan(n: int, steps: int, reset: Any, step: Any, sample: Any) -> Any:
    """Return a jitted function of a key that steps n environments with random actions and sums all outputs."""

    def run(key: Any) -> Any:
        states = jax.vmap(reset)(jax.random.split(key, n))
        states = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), states)

        def one(carry: Any, key: Any) -> tuple[Any, Any]:
            keys = jax.random.split(key, n)
            after, seen = jax.vmap(step)(keys, carry[0], jax.vmap(sample)(keys))
            like = jax.tree.map(lambda x, to: jnp.asarray(x, to.dtype), after, carry[0])
            return (like, jax.tree.map(lambda x: x.astype(jnp.float32).sum(), jax.tree.leaves(seen))), None

        first = [jnp.float32(0) for _ in jax.tree.leaves(jax.eval_shape(lambda: one((states, None), key)[0][1]))]
        return jax.lax.scan(one, (states, first), jax.random.split(key, steps))[0][1]

    return jax.jit(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| env= | compiled in s | steps/s of 1 | of 128 | adapter / library, 1 | 128 |\n|---|---|---|---|---|---|")
    for name in args.names:
        env: Any = make_task(config.to_plain_data(config.compose_config(f"env={name}".split())))
        params, suite = env.default_params, name.partition("/")[0]
        ours = lambda key, env=env, params=params: env.reset(key, params)[0]  # noqa: E731
        ours_step = lambda key, state, action, env=env, params=params: env.step(key, state, action, params)  # noqa: E731
        theirs = raw(suite, env)
        rates, ratios, compiled = [], [], 0.0
        for n in (1, 128):
            programs = [
                scan(n, args.steps, *functions, env.action_space.sample) for functions in ((ours, ours_step), theirs)
            ]
            key, best = jax.random.key(0), [float("inf")] * 2
            begun = time.perf_counter()
            jax.block_until_ready(programs[0](key))
            compiled = compiled or time.perf_counter() - begun
            jax.block_until_ready(programs[1](key))
            for _ in range(args.rounds):
                for i, program in enumerate(programs):
                    begun = time.perf_counter()
                    jax.block_until_ready(program(key))
                    best[i] = min(best[i], time.perf_counter() - begun)
            rates.append(n * args.steps / best[0])
            ratios.append(best[0] / best[1])
        numbers = f"{compiled:.0f} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f}"
        print(f"| {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
