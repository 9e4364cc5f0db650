"""Compare the arcade with PufferLib's C and with gymnax: steps per CPU second of 1,024 copies, with random actions.

PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/arcade.py PUFFER        PUFFER is PufferLib 3.0.0's unpacked source
PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/arcade.py               without C

evorl's side is what a training steps through: episodes restart, and each step of each copy has its own key. Actions
are drawn beforehand, and all observations, rewards and ends are summed. C draws its actions as it steps, and restarts
episodes by itself. A step of Snake is a step of one snake: evorl has 1,024 maps with one snake each; C, by PufferLib's
settings, has 4 maps of 640 x 360 with 256 snakes each. All sides take turns. Times are CPU time of the process, the
best of the rounds.
"""

import argparse
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
from peers_arcade_games import CARTPOLE, GAMES, library
from peers_timing import compiled, surroundings

from evorl.envs.arcade import Asteroids, CartPole, Game2048, SpaceInvaders
from evorl.envs.suites.gymnax import Gymnax
from evorl.types import Array, Key
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

COPIES, STEPS = 1024, 250
OURS = {name: peer.env for name, peer in GAMES.items()} | {
    "cartpole": CartPole(), "2048": Game2048(), "asteroids": Asteroids(), "space_invaders": SpaceInvaders(),
}  # fmt: skip
SETTINGS = {"WIDE": 640, "HIGH": 360, "FOODS": 4096, "LEVEL": -1}  # PufferLib's settings of Snake and Freeway
SOURCES = GAMES | {"cartpole": CARTPOLE}


def play(env: Any, key: Key) -> Array:
    """Step all copies with random actions and return the sum of all observations, rewards and ends."""
    actions = jax.random.randint(jax.random.fold_in(key, 1), (STEPS, COPIES), 0, env.action_space.n)

    def policy(obs: Any, now: Array, keys: Key) -> tuple[Array, Array, dict[str, Any]]:
        return jax.lax.dynamic_index_in_dim(actions, now[0], keepdims=False), now + 1, {}

    world = EnvBatch(env, env.default_params, jnp.int32(0), COPIES)
    begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, key)

    def add(carry: Any, _: None) -> tuple[Any, None]:
        playing, total = carry
        playing, (seen, _mask) = step(playing, None)
        obs = sum(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(seen.next_obs))
        return (playing, total + obs + seen.reward.sum() + seen.is_done.sum()), None

    return jax.lax.scan(add, (begin, jnp.float32(0)), length=STEPS)[0][1]


def ours(env: Any) -> tuple[Callable[[int], Any], int]:
    """Return a function that plays evorl's game once, and the number of its steps."""
    program, _ = compiled(lambda key: play(env, key), jax.random.key(0))
    return lambda i: jax.block_until_ready(program(jax.random.key(i))), STEPS * COPIES


def theirs(puffer: Path, name: str) -> tuple[Callable[[int], Any], int]:
    """Return a function that plays the C game once, and the number of its steps."""
    game = library(puffer, SOURCES[name], SETTINGS)
    maps, agents = (4, 256) if name == "snake" else (COPIES, 1)
    game.make(maps, agents)
    steps = 10 if name == "connect_four" else STEPS
    return lambda i: game.run(steps), steps * COPIES


def rates(programs: dict[str, tuple[Callable[[int], Any], int]], rounds: int) -> dict[str, float]:
    """Return the steps per CPU second of each program, the best of its rounds."""
    best = dict.fromkeys(programs, 0.0)
    for i in range(rounds + 1):  # the first round warms up
        for name, (run, steps) in programs.items():
            before = time.process_time()
            run(i)
            best[name] = max(best[name], steps / (time.process_time() - before)) if i else 0.0
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("puffer", type=Path, nargs="?")
    parser.add_argument("--games", nargs="*", default=list(OURS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(surroundings(args.rounds), datetime.date.today())
    print("\n| | evorl | C | evorl / C |\n|---|---|---|---|")
    for name in args.games:
        programs = {"evorl": ours(OURS[name])}
        if args.puffer and name in SOURCES:
            programs["C"] = theirs(args.puffer, name)
        if name == "space_invaders":
            programs["gymnax"] = ours(Gymnax("SpaceInvaders-MinAtar"))
        found = rates(programs, args.rounds)
        other = next((rate for key, rate in found.items() if key != "evorl"), None)
        cells = f"{found['evorl'] / 1e6:.2f} M"
        cells += f" | {other / 1e6:.2f} M | {found['evorl'] / other:.2f}" if other else " | | "
        print(f"| {name}{' (next to gymnax)' if 'gymnax' in found else ''} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
