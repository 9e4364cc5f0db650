"""Define the workloads that `guards.py` measures: those of the benchmarks, at sizes that compile in seconds.

E1 to E9, J2, J5, J6, U1, U2, P1, M1 and M2 have the structure of the benchmarks of these names; E2, E3 and E10 are the
programs of E1 and E4 with more members or longer episodes. The physics is that of Brax's trivial environment. A replay
buffer has 8,192 rows, 200 kB, and a weight matrix takes 4 kB, so that copies of both count (`hlo.BIG`) and copies of
batches do not. A workload "loop" is a loop over `workflow.step` that a user writes, with a donated state; the others
run as trainings do, by `Program`. The workloads in SPREAD run on four devices.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from evorl import (
    CEM,
    CEMRL,
    PBT,
    PSRO,
    SAC,
    TD3,
    Brax,
    Evolution,
    Gymnax,
    MLPPolicy,
    OffPolicy,
    OnPolicy,
    OpenES,
    Vmapped,
    tree,
)
from evorl.agents import PPO
from evorl.agents.muon import Muon
from evorl.agents.puffer import Puffer
from evorl.ec import GridArchive, IsoLineEmitter, MapElites
from evorl.envs import mpe
from evorl.envs.games import ExtensiveFormGame, Kuhn
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.sanity.grid import Grid
from evorl.networks.encoders import CNN
from evorl.networks.network import Flat
from evorl.networks.recurrent import LSTM
from evorl.parts import bind, resolve_numbers
from evorl.population import Pairs, Swarm, Truncation
from evorl.priors import LogUniform
from evorl.replay.ring import RingBuffer
from evorl.training.devices import compiler_options, fast_compile_options
from evorl.training.program import Program, make_run_args
from evorl.types import Key
from evorl.ued import PLR
from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps
from evorl.workflows.sampling import PrioritizedSegments

Executable = jax.stages.Compiled
HIDDEN, CAPACITY, STEPS, DEVICES = (32, 32), 8192, 3, 4


def options() -> dict[str, Any]:
    """Return the compiler options of trainings, with LLVM's level 0, which comes after the optimization of HLO."""
    return compiler_options() | fast_compile_options()


def trained(workflow: Any, seeds: int = 1, devices: int = 1) -> Executable:
    """Compile a workflow as a training does, and run two chunks."""
    program = Program(workflow, range(seeds), STEPS, False, devices)
    numbers = resolve_numbers(workflow)
    traced = program.trace(numbers)
    state = traced.init.lower().compile(fast_compile_options())(program.keys, numbers)
    run = traced.run.compile(options())
    for i in range(2):
        state, _, _ = run(state, program.keys, *make_run_args(STEPS * i, STEPS, False))
    return run


def looped(workflow: Any) -> Executable:
    """Compile a step followed by a loop of steps, as a user may write it, and run it twice."""

    def run(state: Any, key: Key) -> Any:
        once = workflow.step(state, key)
        return jax.lax.fori_loop(1, STEPS, lambda i, loop: workflow.step(loop[0], jax.random.fold_in(key, i)), once)

    state = jax.jit(workflow.init, compiler_options=fast_compile_options())(
        jax.random.key(0), resolve_numbers(workflow)
    )
    compiled = jax.jit(run, donate_argnums=0).lower(state, jax.random.key(1)).compile(options())
    for i in range(2):
        state, _ = compiled(state, jax.random.key(i))
    return compiled


def scanned(step: Callable[[Any, Key], Any], carry: Any) -> Executable:
    """Compile a scan of step(carry, key) with a donated carry, and run it twice."""

    def run(carry: Any, key: Key) -> Any:
        return jax.lax.scan(lambda carry, key: (step(carry, key), None), carry, jax.random.split(key, STEPS))[0]

    compiled = jax.jit(run, donate_argnums=0).lower(carry, jax.random.key(1)).compile(options())
    for i in range(2):
        carry = compiled(carry, jax.random.key(i))
    return compiled


def off_policy(agent: Any) -> OffPolicy:
    env = Brax("fast", max_episode_steps=8)
    agent = agent(hidden=HIDDEN)
    return OffPolicy(
        env, agent, num_envs=2, num_steps=1, num_updates=2, batch_size=16, capacity=CAPACITY, random_steps=16
    )


def cem_rl() -> CEMRL:
    env = Brax("fast", max_episode_steps=8)
    agent = TD3(hidden=HIDDEN, layer_norm=True)
    return CEMRL(
        env,
        agent,
        CEM(4),
        min_updates=2,
        max_updates=2,
        batch_size=16,
        capacity=CAPACITY,
        random_steps=16,
        scan_length=4,
    )


def evolution() -> Evolution:
    env = Brax("fast", max_episode_steps=8)
    policy = MLPPolicy(hidden=HIDDEN)
    return Evolution(env, policy, OpenES(4))


def map_elites() -> Evolution:
    archive = GridArchive((-1.0,), (1.0,), (8,), threshold_min=-9.0)
    evolver = MapElites(archive, IsoLineEmitter(4), descriptors=("return",))
    env = Brax("fast", max_episode_steps=8)
    return Evolution(env, MLPPolicy(hidden=HIDDEN), evolver)


def on_policy(env: Any, **agent: Any) -> OnPolicy:
    learner = PPO(hidden=HIDDEN, **agent)
    return OnPolicy(env, learner, num_envs=4, num_steps=8, num_epochs=2, batch_size=16, eval_episodes=4)


def pbt(**parts: Any) -> PBT:
    inner = on_policy(Brax("fast", max_episode_steps=8), learning_rate=LogUniform(1e-5, 1e-2))
    return PBT(Vmapped(inner, 4), steps_per_generation=2, search=("learning_rate",), **parts)


def puffer() -> OnPolicy:
    env = Grid(image=True)
    spaces, encoder = (env.observation_space, env.action_space), Flat((16,), activation="gelu")
    agent = Puffer(hidden=(), encoder=encoder, optimizer=Muon(), observation_space=spaces[0], action_space=spaces[1])
    sampling = PrioritizedSegments(8)
    return OnPolicy(env, agent, 8, 8, num_epochs=1, batch_size=16, sampling=sampling, refresh="minibatch")


def psro() -> PSRO:
    game: Any = ExtensiveFormGame(Kuhn())
    return PSRO(game, capacity=4)


def search() -> Executable:
    """Compile a generation: ask, evaluate a sphere, and tell."""
    evolver = OpenES(8)
    numbers = resolve_numbers(evolver)

    def generation(state: Any, key: Key) -> Any:
        key_ask, key_tell = jax.random.split(key)
        genomes, state = bind(evolver, numbers).ask(key_ask, state)
        return bind(evolver, numbers).tell(key_tell, genomes, -(genomes**2).sum(1), state)[0]

    return scanned(generation, jax.jit(bind(evolver, numbers).init)(jax.random.key(0), jnp.ones(64)))


def replay(num_rows: int) -> Executable:
    """Compile adding rows to a replay buffer and sampling a batch."""
    rows = {"obs": jnp.ones((num_rows, 6)), "reward": jnp.ones(num_rows)}

    def step(carry: Any, key: Key) -> Any:
        ring, total = carry
        ring = ring.add(rows, jnp.ones(num_rows, bool))
        return ring, jax.tree.map(jnp.add, total, ring.sample(key, (16,)).rows)

    one = tree.index(rows, 0)
    return scanned(step, (RingBuffer.empty(CAPACITY, one), tree.zeros_like(tree.broadcast(one, 16))))


def stepped(env: Any) -> Executable:
    """Compile stepping environments with random actions and automatic resets."""
    world = EnvBatch(env, env.default_params, jnp.int32(0), 4)

    def policy(obs: Any, memory: Any, keys: Key) -> Any:
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def run(total: jax.Array, key: Key) -> jax.Array:
        begin, step, *_ = build_steps(world, policy, RolloutPlan(ResetStarts()), None, key)
        _, (seen, _) = jax.lax.scan(step, begin, length=4)
        leaves = jax.tree.leaves((seen.next_obs, seen.reward, seen.is_done))
        return total + sum(x.sum(dtype=jnp.float32) for x in leaves)

    return scanned(run, jnp.float32(0))


def maze_student() -> OnPolicy:
    return on_policy(Maze(RandomWalls(fewest=8, most=8)), encoder=CNN(embedding=5), core=LSTM(16))


def plr() -> PLR:
    maze = Maze(RandomWalls(fewest=8, most=8), max_episode_steps=8)
    return PLR(on_policy(maze, encoder=CNN(embedding=5)), capacity=8)


ON_ONE: dict[str, Callable[[], Executable]] = {
    "E1": lambda: trained(evolution()),
    "E4": lambda: trained(cem_rl()),
    "E5": lambda: trained(pbt(selection=Truncation(0.25))),
    "E6": lambda: trained(pbt(selection=Pairs(), variation=Swarm())),
    "E7": lambda: trained(on_policy(Brax("fast", max_episode_steps=8))),
    "E8": lambda: trained(off_policy(TD3)),
    "E8 loop": lambda: looped(off_policy(TD3)),
    "E9": lambda: trained(off_policy(SAC)),
    "E9 loop": lambda: looped(off_policy(SAC)),
    "J2": lambda: trained(on_policy(Gymnax("CartPole-v1"))),
    "J5": search,
    "J6-1": partial(replay, 1),
    "J6-16": partial(replay, 16),
    "M1": lambda: stepped(mpe.MPE(mpe.SimpleSpread())),
    "M2": lambda: trained(psro()),
    "P1": lambda: trained(puffer()),
    "U1": lambda: stepped(Maze(RandomWalls(fewest=8, most=8))),
    "U2": lambda: trained(maze_student()),
}
SPREAD: dict[str, Callable[[], Executable]] = {
    "OpenES x4": lambda: trained(evolution(), devices=4),
    "MAP-Elites x4": lambda: trained(map_elites(), devices=4),
    "CEM-RL x4": lambda: trained(cem_rl(), devices=4),
    "PPO x4": lambda: trained(on_policy(Brax("fast", max_episode_steps=8)), devices=4),
    "TD3 x4": lambda: trained(replace(off_policy(TD3), num_envs=4), devices=4),
    "PLR x4": lambda: trained(plr(), devices=4),
    "PBT x4": lambda: trained(pbt(selection=Truncation(0.25)), devices=4),
    "seeds x4": lambda: trained(off_policy(TD3), seeds=8, devices=4),
}
WORKLOADS = ON_ONE | SPREAD
