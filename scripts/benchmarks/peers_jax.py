"""Compare evorl with Brax (J1), rejax (J2), a hand-written TD3 (J4), evosax (J5) and replay buffers (J6); calibrate."""

import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array
from peers_ppo import trainings
from peers_search import j5
from peers_timing import Case, Program, compare
from peers_updates import td3_block, updates
from updates_sizes import ACTIONS, BATCH, OBS

from evorl import Brax, tree
from evorl.replay.ring import RingBuffer
from evorl.vector_env import EnvBatch, FixedStarts, RolloutPlan, build_steps

KEY = jax.random.key(0)
ENVS, STEPS = 128, 200
PHYSICS = {
    "inverted_pendulum": ("generalized", "mjx"),
    "inverted_double_pendulum": ("spring",),
    "reacher": ("generalized",),
    "hopper": ("spring",),
    "halfcheetah": ("spring",),
    "ant": ("spring", "positional"),
}
CAPACITY, ITERATIONS = 1_000_000, 200
REFERENCE = {"TD3 block": 189.0, "raw brax": 97_000.0}  # updates/s and steps/s on EvoRL's machine


# J1: environment steps


def sums(obs: Array, reward: Array, done: Array) -> tuple[Array, ...]:
    return obs.sum(), reward.sum(), done.sum()


def unrolled(env: Brax, envs: int = ENVS) -> Program:
    """Return a program that steps evorl's adapter with auto-reset, which restarts ended episodes."""
    world = EnvBatch(env, None, None, envs)
    starts = jax.jit(world.reset)(jax.random.split(KEY, envs))

    def at_random(obs: Any, memory: Any, keys: Any) -> tuple[Any, Any, dict]:
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def run(starts: Any) -> Any:
        begin, step, *_ = build_steps(world, at_random, RolloutPlan(FixedStarts(starts)), None, KEY)
        (end, stats, _), (steps, _) = jax.lax.scan(step, begin, length=STEPS)
        return end, stats, sums(steps.obs, steps.reward, steps.is_done)

    return Program(run, (starts,), envs * STEPS)


def stepped(env: Brax) -> Program:
    """Return a program that runs only the step of evorl's adapter."""
    states, _ = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, ENVS), ())

    def step(states: Any, key: Array) -> tuple[Any, Any]:
        actions = jax.random.uniform(key, (ENVS, *env.action_space.shape), minval=-1.0, maxval=1.0)
        states, timestep = jax.vmap(env.step, (None, 0, 0, None))(key, states, actions, ())
        return states, (timestep.obs, timestep.reward, timestep.terminated | timestep.truncated)

    return scanned(step, states, ENVS)


def raw(reset: Callable[..., Any], brax_step: Callable[..., Any], action_size: int, envs: int = ENVS) -> Program:
    """Return a program that runs Brax's own batched step, with or without its wrappers."""

    def step(state: Any, key: Array) -> tuple[Any, Any]:
        state = brax_step(state, jax.random.uniform(key, (envs, action_size), minval=-1.0, maxval=1.0))
        return state, (state.obs, state.reward, state.done)

    keys = jax.random.split(jax.random.PRNGKey(0), envs)  # equals KEY; the wrappers take only old-style keys
    return scanned(step, jax.jit(reset)(keys), envs)


def scanned(step: Callable[..., Any], state: Any, envs: int) -> Program:
    def run(state: Any, key: Array) -> Any:
        state, outputs = jax.lax.scan(step, state, jax.random.split(key, STEPS))
        return state, sums(*outputs)

    return Program(run, (state, KEY), envs * STEPS)


def wrapped(env: Any, envs: int = ENVS) -> Program:
    """Return a program that steps an environment of Brax with the wrappers of Brax's trainers."""
    from brax.envs import training

    training_env = training.wrap(env, episode_length=1000, action_repeat=1)
    return raw(training_env.reset, training_env.step, env.action_size, envs)


def physics(name: str, backend: str) -> Iterator[Case]:
    env = Brax(name, backend)
    yield "auto-reset", {"evorl": unrolled(env), "brax": wrapped(env.env)}
    bare = raw(jax.vmap(env.env.reset), jax.vmap(env.env.step), env.env.action_size)
    yield "step alone", {"evorl": stepped(env), "brax": bare}


# J6: replay buffers


@dataclass(frozen=True)
class Buffer:
    """A replay buffer: a state and three functions.

    `add(state, rows, mask)` returns a state, `sample(state, key)` returns rows, and `restart(state)` returns
    a state with the initial size.
    """

    state: Any
    add: Callable[..., Any]
    sample: Callable[..., Any]
    restart: Callable[[Any], Any]


def rows_of(n: int) -> dict[str, Array]:
    """Return n transitions of 42 columns in total."""
    columns = {"obs": (OBS,), "action": (ACTIONS,), "reward": (), "next_obs": (OBS,), "done": ()}
    return {name: jnp.ones((n, *shape)) for name, shape in columns.items()}


def evorl_replay(size: int) -> Buffer:
    def restart(replay: RingBuffer) -> RingBuffer:
        return replace(replay, position=jnp.int32(size % CAPACITY), size=jnp.int32(size))

    replay = RingBuffer.empty(CAPACITY, tree.index(rows_of(1), 0))
    return Buffer(replay, RingBuffer.add, lambda replay, key: replay.sample(key, (BATCH,)).rows, restart)


def ring(size: int) -> Buffer:
    """Return a hand-written ring buffer: one array of packed rows; it adds every row and ignores the mask."""
    like = rows_of(1)
    ends = list(accumulate(leaf.size for leaf in like.values()))

    def add(state: Any, rows: dict[str, Array], mask: Array) -> Any:
        table, position, size = state
        n = mask.size
        packed = jnp.concatenate([leaf.reshape(n, -1) for leaf in rows.values()], 1)
        if n == 1:
            table = jax.lax.dynamic_update_slice(table, packed, (position, 0))
        else:
            table = table.at[(position + jnp.arange(n)) % CAPACITY].set(packed)
        return table, (position + n) % CAPACITY, jnp.minimum(size + n, CAPACITY)

    def sample(state: Any, key: Array) -> dict[str, Array]:
        table, _, size = state
        columns = jnp.split(table[jax.random.randint(key, (BATCH,), 0, size)], ends[:-1], 1)
        return {name: part.reshape(BATCH, *like[name].shape[1:]) for name, part in zip(like, columns, strict=True)}

    def restart(state: Any) -> Any:
        return state[0], jnp.int32(size % CAPACITY), jnp.int32(size)

    return Buffer((jnp.zeros((CAPACITY, ends[-1])), jnp.int32(0), jnp.int32(0)), add, sample, restart)


def flashbax_buffer(size: int, n: int) -> Buffer:
    import flashbax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl

    buffer = flashbax.make_item_buffer(CAPACITY, BATCH, BATCH, add_batches=n > 1)

    def add(state: Any, rows: dict[str, Array], mask: Array) -> Any:
        return buffer.add(state, rows if n > 1 else tree.index(rows, 0))

    def restart(state: Any) -> Any:
        return replace(state, current_index=jnp.int32(size % CAPACITY), is_full=jnp.bool_(size == CAPACITY))

    state = buffer.init(tree.index(rows_of(1), 0))
    return Buffer(state, add, lambda state, key: buffer.sample(state, key).experience, restart)


def adding(buffer: Buffer, n: int) -> Program:
    """Return a program that calls `add` from Python, once per iteration."""
    args = buffer.state, rows_of(n), jnp.ones(n, bool)
    add = lambda *args: buffer.add(*args)  # noqa: E731  # a new function, so that none is already compiled
    return Program(add, args, ITERATIONS, ITERATIONS, buffer.restart)


def adding_and_sampling(buffer: Buffer, n: int) -> Program:
    """Return a program with one scan, in which each add is followed by a sampled batch."""

    def run(carry: Any, rows: Any, mask: Array, key: Array) -> Any:
        def step(carry: Any, key: Array) -> tuple[Any, None]:
            state, total = carry
            state = buffer.add(state, rows, mask)
            return (state, jax.tree.map(jnp.add, total, buffer.sample(state, key))), None

        return jax.lax.scan(step, carry, jax.random.split(key, ITERATIONS))[0]

    args = (buffer.state, tree.zeros_like(rows_of(BATCH))), rows_of(n), jnp.ones(n, bool), KEY
    return Program(run, args, ITERATIONS, 1, lambda carry: (buffer.restart(carry[0]), carry[1]))


def replays(with_flashbax: bool) -> Iterator[Case]:
    for size, filled in ((1_000, "nearly empty"), (CAPACITY, "full")):
        for n in (1, 128):
            for what, program in (("add", adding), ("add + sample, scan", adding_and_sampling)):
                kinds = {"evorl": evorl_replay, "ring": ring}
                if with_flashbax:
                    kinds["flashbax"] = partial(flashbax_buffer, n=n)
                yield f"{what}, n = {n}, {filled}", {name: program(kind(size), n) for name, kind in kinds.items()}


# workloads


def j1(name: str, backend: str, repeats: int) -> dict[str, Any]:
    """Compare environment steps per second."""
    return compare(f"J1-{name}-{backend}", physics(name, backend), "steps/s", repeats)


def j2(repeats: int) -> dict[str, Any]:
    """Compare env steps per second of PPO."""
    python = os.environ.get("REJAX_PYTHON")
    return compare("J2", trainings(python), "steps/s", repeats, "" if python else "REJAX_PYTHON is not set")


def j4(repeats: int) -> dict[str, Any]:
    """Compare TD3 updates per second, of all members together."""
    return compare("J4", updates(), "updates/s", repeats)


def j6(repeats: int) -> dict[str, Any]:
    """Compare the microseconds of an add, and of an add with a sampled batch."""
    found = importlib.util.find_spec("flashbax") is not None
    rounds = 5 * repeats  # its runs take milliseconds
    return compare("J6", replays(found), "us", rounds, "" if found else "flashbax is not installed")


def calibrate(repeats: int) -> dict[str, Any]:
    """Measure the speed of this machine relative to the one where EvoRL was measured.

    EvoRL's figures are CPU seconds, so the speed is based on CPU seconds; the speed by wall time also shows
    whether a core was free.
    """

    def cases() -> Iterator[Case]:
        yield "TD3 block", {"here": td3_block(1)}
        yield "raw brax", {"here": wrapped(Brax("inverted_pendulum"))}

    row = compare("calibrate", cases(), "per s", repeats)
    by_wall = {case: programs["here"]["per s"] / REFERENCE[case] for case, programs in row["cases"].items()}
    threads = {case: programs["here"]["cpu_s"] / programs["here"]["wall_s"] for case, programs in row["cases"].items()}
    by_cpu = {case: ratio / threads[case] for case, ratio in by_wall.items()}
    means = {
        "speed": statistics.geometric_mean(by_cpu.values()),
        "speed_wall": statistics.geometric_mean(by_wall.values()),
    }
    return row | {"to_reference": by_cpu, "to_reference_wall": by_wall} | means


PEERS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{
        f"J1-{name}-{backend}": partial(j1, name, backend) for name, backends in PHYSICS.items() for backend in backends
    },
    "J2": j2,
    "J4": j4,
    "J5": j5,
    "J6": j6,
    "calibrate": calibrate,
}
