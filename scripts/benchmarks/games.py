"""Measure the steps per CPU second of evorl's own games, at 128 and 1,024 copies with random actions.

PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/games.py [--games NAME ...]

The setup is that of arcade.py: episodes restart, each step of each copy has its own key, actions are drawn beforehand,
and all observations, rewards and ends are summed. Each game handles illegal actions in its own way. A step is one step
of the game, in which all members act. Times are CPU time of the process, the best of the rounds.
"""

import argparse
import datetime
import os
from functools import partial
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
from arcade import rates
from peers_timing import compiled, surroundings

from evorl import tree
from evorl.envs.games import ExtensiveFormGame, Kuhn, Leduc, MatrixGame, PongDuel, Snakes, TwoStep
from evorl.types import Array, Key
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

COPIES, STEPS = (128, 1024), 250
GAMES = {
    "matrix": MatrixGame("rock_paper_scissors", rounds=100), "two_step": TwoStep(), "kuhn": ExtensiveFormGame(Kuhn()),
    "kuhn, three": ExtensiveFormGame(Kuhn(3)), "leduc": ExtensiveFormGame(Leduc()), "pong_duel": PongDuel(),
    "snakes": Snakes(),
}  # fmt: skip


def play(env: Any, copies: int, key: Key) -> Array:
    """Step all copies with random actions and return the sum of all observations, rewards and ends."""
    keys = jax.random.split(jax.random.fold_in(key, 1), (STEPS, copies))
    actions = jax.vmap(jax.vmap(env.action_space.sample))(keys)

    def policy(obs: Any, now: Array, keys: Key) -> tuple[Any, Array, dict[str, Any]]:
        return tree.index(actions, now[0]), now + 1, {}

    world = EnvBatch(env, env.default_params, jnp.int32(0), copies)
    begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, key)

    def add(carry: Any, _: None) -> tuple[Any, None]:
        playing, total = carry
        playing, (seen, _mask) = step(playing, None)
        told = jax.tree.leaves((seen.next_obs, seen.reward, seen.is_done))
        return (playing, total + sum(leaf.sum(dtype=jnp.float32) for leaf in told)), None

    return jax.lax.scan(add, (begin, jnp.float32(0)), length=STEPS)[0][1]


def run(program: Any, seed: int) -> Any:
    """Run the program once with this seed."""
    return jax.block_until_ready(program(jax.random.key(seed)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="*", default=list(GAMES))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(surroundings(args.rounds), datetime.date.today())
    print(f"\nmillion steps a CPU second\n\n| | {' | '.join(map(str, COPIES))} |\n|---|{'---|' * len(COPIES)}")
    for name in args.games:
        found = []
        for copies in COPIES:
            program, _ = compiled(partial(play, GAMES[name], copies), jax.random.key(0))
            found.append(rates({"": (partial(run, program), STEPS * copies)}, args.rounds)[""])
        print(f"| {name} | {' | '.join(f'{rate / 1e6:.2f}' for rate in found)} |", flush=True)


if __name__ == "__main__":
    main()
