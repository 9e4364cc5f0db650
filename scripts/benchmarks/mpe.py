"""Compare the steps per second of the particle environments with JaxMARL 0.2.0, with random actions (M1).

pip install jaxmarl==0.2.0 chex && PJRT_NPROC=1 taskset -c 0 python scripts/benchmarks/mpe.py [NAME ...]
python scripts/benchmarks/mpe.py --curve            on a GPU: 128 to 65,536 copies of each, evorl alone

Both libraries step copies whose episodes restart from fresh states; each step of each copy has its own key. Actions
are drawn beforehand, and all observations, rewards and ends are summed. JaxMARL's episodes have 26 steps, evorl's 25.
Both take turns. Times are medians of the rounds, in wall time and in CPU time of the process.
"""

# pyright: reportMissingImports=false

import argparse
import datetime
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")

import jax
import jax.numpy as jnp
from peers_timing import Program, in_turn, surroundings, timed

from evorl import tree
from evorl.envs import mpe
from evorl.spaces import groups
from evorl.types import Array, Key
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

STEPS = 100
GAMES: dict[str, Callable[[], Any]] = {
    "spread": mpe.SimpleSpread, "tag": mpe.SimpleTag, "adversary": mpe.SimpleAdversary, "simple": mpe.Simple,
    "push": mpe.SimplePush, "crypto": mpe.SimpleCrypto, "speaker_listener": mpe.SimpleSpeakerListener,
    "reference": mpe.SimpleReference, "world_comm": mpe.SimpleWorldComm, "collect_treasure": mpe.CollectTreasure,
    "line": mpe.SimpleLine, "formation": mpe.SimpleFormation,
}  # fmt: skip
THEIRS = {
    "spread": "MPE_simple_spread_v3", "tag": "MPE_simple_tag_v3", "adversary": "MPE_simple_adversary_v3",
    "simple": "MPE_simple_v3", "push": "MPE_simple_push_v3", "crypto": "MPE_simple_crypto_v3",
    "speaker_listener": "MPE_simple_speaker_listener_v4", "reference": "MPE_simple_reference_v3",
    "world_comm": "MPE_simple_world_comm_v3",
}  # fmt: skip
REAL = {"world_comm"}  # JaxMARL's actions are continuous here by default, so evorl's are too


def summed(*seen: Any) -> Array:
    """Return the sum over all leaves of the arguments."""
    return jnp.stack([leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(seen)]).sum()


def drawn(key: Key, batch: tuple[int, ...], space: Any, salt: int) -> Array:
    """Sample random actions of a space, shape [STEPS, *batch, ...]."""
    key, shape = jax.random.fold_in(key, 1 + salt), (STEPS, *batch)
    if hasattr(space, "n"):
        return jax.random.randint(key, shape, 0, space.n)
    return jax.random.uniform(key, (*shape, *space.shape))


def ours(name: str, copies: int) -> Callable[[Key], Array]:
    """Return a function that plays evorl's environment with random actions."""
    env = mpe.MPE(GAMES[name](), continuous=name in REAL)

    def run(key: Key) -> Array:
        teams = groups(env.action_space)
        actions = {group: drawn(key, (copies, of.n), of.space, i) for i, (group, of) in enumerate(teams.items())}

        def policy(obs: Any, now: Array, keys: Key) -> tuple[Any, Array, dict[str, Any]]:
            del obs, keys
            return tree.index(actions, now[0]), now + 1, {}

        world = EnvBatch(env, env.default_params, jnp.int32(0), copies)
        begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, key)

        def add(carry: Any, _: None) -> tuple[Any, None]:
            playing, total = carry
            playing, (seen, _mask) = step(playing, None)
            return (playing, total + summed(seen.next_obs, seen.reward, seen.is_done)), None

        return jax.lax.scan(add, (begin, jnp.float32(0)), length=STEPS)[0][1]

    return run


def theirs(name: str, copies: int) -> Callable[[Key], Array]:
    """Return a function that plays JaxMARL's environment with random actions."""
    import jaxmarl

    env = jaxmarl.make(THEIRS[name])

    def run(key: Key) -> Array:
        actions = {agent: drawn(key, (copies,), env.action_space(agent), i) for i, agent in enumerate(env.agents)}
        _, state = jax.vmap(env.reset)(jax.random.split(key, copies))

        def add(carry: Any, now: tuple[Key, Any]) -> tuple[Any, None]:
            (state, total), (key, action) = carry, now
            keys = jax.random.split(key, copies)
            obs, state, reward, done, _ = jax.vmap(env.step)(keys, state, action)
            return (state, total + summed(obs, reward, done["__all__"])), None

        return jax.lax.scan(add, (state, jnp.float32(0)), (jax.random.split(key, STEPS), actions))[0][1]

    return run


def compare(names: list[str], copies: list[int], rounds: int) -> None:
    """Print a row for each game and number of copies."""
    print("\n| env=mpe/ | copies | evorl, steps/s | JaxMARL | ratio | ratio by CPU time |\n|---|---|---|---|---|---|")
    for name in names:
        for n in copies:
            makers = {"evorl": ours} | ({"JaxMARL": theirs} if name in THEIRS else {})
            programs = {who: Program(make(name, n), (jax.random.key(0),), n * STEPS) for who, make in makers.items()}
            found = in_turn(programs, "rate", rounds)
            rate = f"{found['evorl']['rate']:,.0f}"
            peer = found.get("JaxMARL", {})
            others = f"{peer['rate']:,.0f} | {peer['ratio']:.1f} | {peer['ratio_cpu']:.1f}" if peer else "| |"
            print(f"| {name} | {n:,} | {rate} | {others} |", flush=True)


def curve(names: list[str], rounds: int) -> None:
    """Print evorl's steps per second from 128 to 65,536 copies."""
    copies = [128 * 2**i for i in range(10)]
    print("\n| million steps/s | " + " | ".join(f"{n:,}" for n in copies) + " |\n|---" + "|---" * len(copies) + "|")
    for name in names:
        rates = [n * STEPS / timed(jax.jit(ours(name, n)), jax.random.key(0), repeats=rounds)[0] for n in copies]
        print(f"| {name} | " + " | ".join(f"{rate / 1e6:.2f}" for rate in rates) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--copies", type=int, nargs="*", default=[128, 1024])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()
    print(surroundings(args.rounds), datetime.date.today())
    if args.curve:
        curve(args.names or ["spread", "tag", "adversary"], args.rounds)
    else:
        compare(args.names or list(GAMES), args.copies, args.rounds)


if __name__ == "__main__":
    main()
