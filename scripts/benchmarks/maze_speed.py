"""Measure the speed of the maze with random actions, on fresh levels and on one level, and of its path search.

python scripts/benchmarks/maze_speed.py                     1, 32, 256 and 1024 environments, MiniGrid, paths
python scripts/benchmarks/maze_speed.py --cores 2 --envs 256 --steps 500      shared by two cores
MINIMAX_PYTHON=... python scripts/benchmarks/maze_speed.py  and minimax, with a Python that has minimax-lib
python scripts/benchmarks/maze_speed.py --block 0 --envs 65536 --steps 200     on a GPU: all environments in one vmap

The work: 13 x 13, 60 walls drawn with replacement, view 5, normalized, at most 250 steps, uniform over 7 actions; the
observation, reward and end of every step are summed. Fresh: every episode starts on a level that nothing in the run
has used, generated inside the timed program.

On a CPU, more than --block environments run in blocks of this size, which stay in the cache. Each of --cores is a
device with its share of the environments. More threads do not help: such small operations cost less than handing them
to another thread. The result is the best of the repeats, as for the peers. Compilation is measured separately.
"""

import argparse
import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from peers_timing import clock, compiled, surroundings

from evorl.envs.maze import LevelTable, Maze, RandomWalls, paths, to_str
from evorl.types import Array, Key
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

WORK = {1: 20000, 32: 2000, 256: 500, 1024: 250}  # environments: steps
FRESH = Maze(RandomWalls(13, 13, 60, 60))


def play(env: Maze, key: Key, num_envs: int, num_steps: int) -> tuple[Array, Array]:
    """Step the mazes with random actions; return the sum of all observations, rewards and ends, and the episodes."""
    actions = jax.random.randint(jax.random.fold_in(key, 1), (num_steps, num_envs), 0, 7)

    def policy(obs: Any, now: Array, keys: Key) -> tuple[Array, Array, dict[str, Any]]:
        return jax.lax.dynamic_index_in_dim(actions, now[0], keepdims=False), now + 1, {}

    world = EnvBatch(env, env.default_params, jnp.int32(0), num_envs)
    begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, key)

    def add(carry: Any, _: None) -> tuple[Any, None]:
        playing, total = carry
        playing, (seen, _mask) = step(playing, None)
        obs = seen.next_obs["image"].sum() + seen.next_obs["direction"].sum()
        return (playing, total + obs + seen.reward.sum() + seen.is_done.sum()), None

    ((_, tally, _), total), _ = jax.lax.scan(add, (begin, jnp.float32(0)), length=num_steps)
    return total, tally.episodes.sum()


def steps_per_second(env: Maze, num_envs: int, num_steps: int, block: int, repeats: int) -> tuple[float, float]:
    """Return the steps per second, best of the repeats, and the CPU seconds of compiling."""
    devices = math.gcd(num_envs, jax.device_count())
    each = num_envs // devices
    blocks = each // block if block and each > block else 1

    def on_a_device(keys: Key) -> Any:
        return jax.lax.map(lambda key: play(env, key, each // blocks, num_steps), jax.random.split(keys[0], blocks))

    mesh = jax.make_mesh((devices,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.PartitionSpec("devices")
    on_all = jax.shard_map(on_a_device, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)
    program, seconds = compiled(lambda key: on_all(jax.random.split(key, devices)), jax.random.key(0))
    return num_envs * num_steps / best(program, repeats), seconds


def best(program: Any, repeats: int) -> float:
    """Return the wall seconds of the fastest call."""
    jax.block_until_ready(program(jax.random.key(0)))
    return min(clock(program, jax.random.key(i))[0] for i in range(1, repeats + 1))


def minigrid_steps_per_second(num_steps: int = 20_000) -> float:
    """Return the steps per second of MiniGrid's own random mazes of the same size and view, with random actions."""
    from minigrid.envs.crossing import CrossingEnv  # its step does not depend on the layout

    env = CrossingEnv(size=15, num_crossings=5, agent_view_size=5, max_steps=250)
    env.reset(seed=0)
    env.action_space.seed(0)
    started = time.perf_counter()
    for _ in range(num_steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    return num_steps / (time.perf_counter() - started)


def minimax_steps_per_second(python: str, repeats: int) -> dict[str, float]:
    """Return minimax's steps per second on fresh levels, by number of environments.

    The work is the same. The faster of one thread and all threads counts.
    """
    script = [python, str(Path(__file__).with_name("peers_minimax.py")), str(repeats), json.dumps(WORK)]
    found = []
    for threads in ("1", str(os.cpu_count())):
        peer = subprocess.run(script, env=os.environ | {"PJRT_NPROC": threads}, stdout=subprocess.PIPE, check=True)
        found.append(json.loads(peer.stdout))
    return {number: max(speeds[number] for speeds in found) for number in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, help="only so many environments")
    parser.add_argument("--steps", type=int, default=250, help="with --envs")
    parser.add_argument("--block", type=int, default=32, help="0 for none")
    parser.add_argument("--cores", type=int, default=1, help="of a CPU")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    os.environ.setdefault("PJRT_NPROC", "1")  # threads; like the next line, read when the first program runs
    jax.config.update("jax_num_cpu_devices", arguments.cores)
    print(json.dumps(surroundings(arguments.repeats)))
    state, _ = FRESH.reset(jax.random.key(0), FRESH.default_params)
    same = Maze(LevelTable((to_str(state.level),)))
    print("| environments | steps | fresh, steps/s | same, steps/s | compiling, CPU s |\n|---|---|---|---|---|")
    work = {arguments.envs: arguments.steps} if arguments.envs else WORK
    found = {}
    for num_envs, num_steps in work.items():
        fresh, seconds = steps_per_second(FRESH, num_envs, num_steps, arguments.block, arguments.repeats)
        fixed, _ = steps_per_second(same, num_envs, num_steps, arguments.block, arguments.repeats)
        found[num_envs] = fresh
        print(f"| {num_envs} | {num_steps} | {fresh:,.0f} | {fixed:,.0f} | {seconds:.1f} |", flush=True)
    for number in (32, 4096):
        keys = jax.random.split(jax.random.key(1), number)
        levels = jax.jit(jax.vmap(FRESH.levels.sample, (0, None)))(keys, FRESH.default_params)
        search, _ = compiled(lambda key, levels=levels: jax.vmap(paths.path_length)(levels), jax.random.key(0))
        print(f"paths of {number} levels: {1000 * best(search, arguments.repeats):.2f} ms")
    if not arguments.envs:
        print(f"MiniGrid {minigrid_steps_per_second():,.0f} steps/s")
    python = os.environ.get("MINIMAX_PYTHON")
    if python and not arguments.envs:
        for number, speed in minimax_steps_per_second(python, arguments.repeats).items():
            ratio = found[int(number)] / speed
            print(f"minimax, {number} environments: {speed:,.0f} fresh steps/s, evorl over it {ratio:.1f}")


if __name__ == "__main__":
    main()
