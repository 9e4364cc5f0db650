"""Jobs of `gpu.py`: programs that are compiled first and timed later, and commands.

A timed job is a function of the size (tiny or not) that compiles its programs and returns a function `begin`. `begin`
makes the first state, when the job is alone on the GPU, and returns the call that is timed.
"""

import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

Call = Callable[[], Any]  # runs the compiled program once and returns its metrics, with env_steps
Begin = Callable[[], Call]
SMALL_OFF = "agent.workflow.random_steps=64 agent.workflow.capacity=1_000"
FAMILIES = {
    "accel": "agent=accel env=maze",
    "paired": "agent=paired env=maze",
    "puffer": "agent=puffer env=cartpole",
    "sfl": "agent=sfl env=maze",
    "plr": "agent=plr env=maze",
    "pga_me": "agent=pga_me env=feet",
    "low_rank_es": "agent=low_rank_es env=cartpole",
    "seeded_es": "agent=seeded_es env=cartpole",
    "nfsp": "agent=nfsp env=kuhn",
    "league": "agent=league env=kuhn",
    "psro_exact": "agent=psro_exact env=kuhn",
    "xfp": "agent=xfp env=kuhn",
    "impala": "agent=impala env=cartpole",
    "ppo_s5": "agent=ppo core=s5 env=cartpole",
    "ppo_lstm": "agent=ppo core=lstm env=memory_chain",
    "openes": "agent=openes env=cartpole",
    "cma_me": "agent=cma_me env=feet",
    "novelty": "agent=novelty env=point_maze",
    "arcade": "agent=ppo env=arcade/breakout",
    "dqn": f"agent=dqn env=cartpole {SMALL_OFF}",
    "sac": f"agent=sac env=pendulum {SMALL_OFF}",
    "cemrl": f"agent=cemrl env=pendulum {SMALL_OFF}",
    "erl": f"agent=erl env=pendulum {SMALL_OFF}",
    "pbt": "agent=pbt agent/inner=ppo env=cartpole",
    "pbt_cso": "agent=pbt_cso agent/inner=ppo env=cartpole",
    "meta_es": "agent=meta_es agent/inner=ppo env=cartpole",
    "mappo": "agent=mappo env=mpe/spread",
    "qmix": "agent=qmix env=two_step",
    "nsga2": "agent=search problem=zdt1",
    "host": "agent=ppo env=gymnasium env.name=CartPole-v1",
    "seeds": "agent=ppo env=cartpole num_seeds=64",
}
SHORT = "env.max_episode_steps=10"
FEW_EPISODES = f"{SHORT} agent.workflow.eval_episodes=2"
FEW_INDIVIDUALS = f"{FEW_EPISODES} agent.workflow.vbn_steps=64 agent.workflow.evolver"
FEW_UPDATES = f"{FEW_EPISODES} agent.workflow.random_steps=64 agent.workflow.min_updates=2 agent.workflow.max_updates=2"
FEW_MAZES = f"{SHORT} agent.inner.workflow.num_envs=2 agent.inner.workflow.eval_episodes=2"
NO_ROBOT = "env=point_maze agent.workflow.evolver.descriptors=[position]"  # a robot's physics compiles for minutes
FEW_MEMBERS = (
    f"{SHORT} agent.workflow.population.size=4 agent.inner.workflow.num_envs=4 agent.inner.workflow.num_steps=8"
)
FEW_MEMBERS += " agent.inner.workflow.batch_size=32 agent.inner.workflow.eval_episodes=2"
SMALL_ROLLOUT = "agent.workflow.num_envs=4 agent.workflow.num_steps=8 agent.workflow.batch_size=32"
TINY = {  # further options of the families in a rehearsal
    "accel": FEW_MAZES,
    "paired": f"{FEW_MAZES} agent.teacher.workflow.num_envs=2",
    "puffer": "agent.workflow.num_envs=8 agent.workflow.batch_size=128",
    "sfl": f"{FEW_MAZES} agent.inner.workflow.num_steps=10 agent.inner.workflow.batch_size=20"
    " agent.workflow.capacity=4 agent.workflow.num_candidates=4",
    "plr": FEW_MAZES,
    "pga_me": f"{NO_ROBOT} {FEW_EPISODES} agent.workflow.num_learners=2 agent.workflow.critic_updates=2"
    " agent.workflow.policy_updates=2 agent.workflow.evolver.emitter.first.size=2"
    " agent.workflow.evolver.emitter.second.size=2",
    "low_rank_es": f"{FEW_INDIVIDUALS}.population_size=4",
    "seeded_es": f"{FEW_INDIVIDUALS}.search.population_size=4",
    "nfsp": "agent.workflow.reservoir=1_000",
    "impala": "agent.workflow.num_envs=4 agent.workflow.batch_size=80",
    "ppo_s5": SMALL_ROLLOUT,
    "ppo_lstm": SMALL_ROLLOUT,
    "openes": f"{FEW_INDIVIDUALS}.population_size=4",
    "cma_me": f"{NO_ROBOT} {FEW_EPISODES} agent.workflow.evolver.emitter.copies=2",
    "novelty": f"{FEW_EPISODES} agent.workflow.evolver.evolver.population_size=4",
    "arcade": SMALL_ROLLOUT,
    "dqn": f"{FEW_EPISODES} agent.workflow.num_updates=2",
    "sac": f"{FEW_EPISODES} agent.workflow.num_updates=2",
    "cemrl": f"{FEW_UPDATES} agent.workflow.evolver.population_size=4",
    "erl": f"{FEW_UPDATES} agent.workflow.evolver.population_size=4",
    "pbt": FEW_MEMBERS,
    "pbt_cso": FEW_MEMBERS,
    "meta_es": f"{FEW_MEMBERS} agent.workflow.lifetime=2",
    "mappo": f"{SMALL_ROLLOUT} agent.workflow.eval_episodes=2",
    "qmix": "agent.workflow.num_updates=2 agent.workflow.random_steps=64",
    "host": SMALL_ROLLOUT,
    "seeds": f"num_seeds=2 {SMALL_ROLLOUT}",
}
HIDDEN = (256, 256)  # of the networks that are compared with those of Brax
PEERS = {  # jobs of scripts/comparison: topic, function of its sides, arguments, those of a rehearsal, and libraries
    "OpenES on CartPole, 4,096 individuals": ("es", "cartpole", (4096,), (16,), ("evorl", "evosax")),
    "OpenES on the sphere, 100,000 parameters": ("es", "openes", (100_000,), (1_000,), ("evorl", "evosax")),
    "CMA-ES on the sphere, 1,000 parameters": ("es", "cma_es", (1_000,), (10,), ("evorl", "evosax")),
    "updates of TD3, 32 members": ("rl", "td3_updates", (32,), (8,), ("evorl", "flax")),
    "steps of ant, 4,096 environments": ("brax", "steps", ("ant", 4096), ("inverted_pendulum", 8), ("evorl", "brax")),
}
ON_DEVICE_LOOPS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,WHILE,CONDITIONAL"


@dataclass(frozen=True)
class Timed:
    """A job that is compiled in parallel with others and timed alone.

    Args:
        compiles: Function of tiny that compiles the job.
        count: Number of iterations per call.
        flags: Flags of XLA for this job.
    """

    compiles: Callable[[bool], Begin]
    count: int = 1
    flags: str = ""


@dataclass(frozen=True)
class Command:
    """A job that runs a command of evorl.

    Args:
        arguments: Command and arguments, such as "train agent=ppo".
        tiny: Further arguments of a rehearsal.
        copies: Number of processes that run it at the same time.
        metrics: Metrics to keep of each row.
        share: Share of a GPU's memory for each process; 0 for JAX's default.
    """

    arguments: str
    tiny: str = ""
    copies: int = 1
    metrics: tuple[str, ...] = ()
    share: float = 0.0


def make_physics(name: str, tiny: bool) -> Any:
    """Return an environment by its name: NAME/BACKEND of Brax, mjx/NAME of Gymnasium, or a task of Playground."""
    from evorl import Brax
    from evorl.envs.mujoco import MJX
    from evorl.envs.suites import Playground

    name, _, rest = name.partition("/")
    if tiny:
        return Brax("fast")
    if name == "mjx":
        return MJX(rest, solver="fast")
    return Brax(name, backend=rest) if rest else Playground(name)


def ppo(name: str, tiny: bool, envs: int = 4096, batch: int = 8192) -> Any:
    """Return PPO with 16 steps, 4 epochs and networks of 256, 256, as those of Brax."""
    from evorl import OnPolicy
    from evorl.agents import PPO

    env, hidden = make_physics(name, tiny), (8,) if tiny else HIDDEN
    envs, batch = (16, 64) if tiny else (envs, batch)
    agent = PPO(hidden=hidden, activation="swish", state_dependent_std=True)
    workflow = OnPolicy(env, agent, num_envs=envs, num_steps=16, num_epochs=4, batch_size=batch)
    return replace(workflow, normalize_values=False)


def off_policy(which: str, name: str, tiny: bool, envs: int, updates: int = 2) -> Any:
    """Return TD3 or SAC; an iteration is one step of each environment and a number of updates of batch 256.

    As in Brax, SAC updates actor and critics equally often and normalizes observations.
    """
    from evorl import SAC, TD3, OffPolicy

    agent, envs = {"td3": TD3, "sac": SAC}[which](hidden=(8,) if tiny else HIDDEN), min(envs, 2) if tiny else envs
    workflow = OffPolicy(make_physics(name, tiny), agent, num_envs=envs, num_steps=1, num_updates=updates)
    workflow = replace(workflow, capacity=max(200 * envs, 1024), random_steps=max(2 * envs, 256))
    return replace(workflow, policy_delay=1, normalize_observations=True) if which == "sac" else workflow


def pbt(tiny: bool, members: int) -> Any:
    """Return PBT of PPO on ant (spring); a generation is 16 iterations of 64 environments."""
    from evorl.population import NoSelection, Truncation
    from evorl.priors import Uniform
    from evorl.workflows import PBT, Vmapped

    inner = ppo("ant/spring", tiny, 64, 256)
    inner = replace(inner, agent=replace(inner.agent, clip=Uniform(0.1, 0.3)), eval_episodes=4)
    selection = NoSelection() if members == 1 else Truncation(0.25)
    return PBT(Vmapped(inner, members), selection, steps_per_generation=2 if tiny else 16, search=("clip",))


def evolution(evolver: str, size: int, tiny: bool) -> Any:
    """Return a search for a policy of 256, 256 on CartPole."""
    from evorl import Evolution, Gymnax, MLPPolicy
    from evorl.ec import LowRankES, OpenES

    kind = {"openes": OpenES, "low_rank": LowRankES}[evolver]
    policy = MLPPolicy(hidden=(8,) if tiny else HIDDEN)
    size = 16 if tiny else size
    return Evolution(Gymnax("CartPole-v1"), policy, kind(size), eval_episodes=16, members_at_once=size)


def configured(options: str, tiny: bool, tiny_options: str = "") -> Any:
    """Return the workflow of a command."""
    from evorl.training import runs
    from evorl.training.configuration import config

    given = [*options.split(), "iterations=1", *(tiny_options.split() if tiny else ())]
    return runs.build(config.compose_config(given))[0]


def compile_training(workflow: Any, seeds: int = 1, count: int = 1, vectorized: bool = True, devices: int = 1) -> Begin:
    """Compile `Program` as trainings do; a call runs `count` iterations and returns the metrics of the last one."""
    import jax

    from evorl.parts import resolve_numbers
    from evorl.training.devices import compiler_options
    from evorl.training.program import Program, make_run_args

    program, numbers = Program(workflow, range(seeds), count, vectorized, devices), resolve_numbers(workflow)
    traced = program.trace(numbers)
    run, init = traced.run.compile(compiler_options()), traced.init.lower().compile()

    def begin() -> Call:
        state, first = init(program.keys, numbers), 0

        def call() -> Any:
            nonlocal state, first
            state, metrics, _ = run(state, program.keys, *make_run_args(first, count, False))
            first += count
            return jax.tree.map(lambda x: x[..., -1] if x.ndim else x, metrics)

        return call

    return begin


def compile_loop(workflow: Any, count: int) -> Begin:
    """Compile one step followed by a loop of steps, as in a user's own program."""
    import jax

    from evorl.parts import resolve_numbers

    def run(state: Any, key: Any) -> Any:
        def again(i: Any, loop: Any) -> Any:
            return workflow.step(loop[0], jax.random.fold_in(key, i))

        return jax.lax.fori_loop(1, count, again, workflow.step(state, key))

    init = jax.jit(workflow.init).lower(jax.random.key(0), resolve_numbers(workflow)).compile()
    shapes = jax.eval_shape(workflow.init, jax.random.key(0), resolve_numbers(workflow))
    compiled = jax.jit(run, donate_argnums=0).lower(shapes, jax.random.key(0)).compile()

    def begin() -> Call:
        state, key = init(jax.random.key(0), resolve_numbers(workflow)), jax.random.key(7)

        def call() -> Any:
            nonlocal state, key
            key = jax.random.fold_in(key, 1)
            state, metrics = compiled(state, key)
            return metrics

        return call

    return begin


def compile_steps(env: Any, envs: int, count: int, resets: bool) -> Begin:
    """Compile `count` steps of an environment with random actions, with automatic resets or without."""
    import jax
    import jax.numpy as jnp

    from evorl.vector_env import EnvBatch, ResetStarts, RolloutPlan, build_steps

    def act(obs: Any, memory: Any, keys: Any) -> Any:
        return jax.vmap(env.action_space.sample)(keys), memory, {}

    def run_with_resets(key: Any) -> Any:
        world = EnvBatch(env, env.default_params, jnp.int32(0), envs)
        begin, step, *_ = build_steps(world, act, RolloutPlan(ResetStarts()), None, key)
        return jax.lax.scan(step, begin, length=count)[1][0].reward.sum()

    def run(key: Any) -> Any:
        keys = jax.random.split(key, envs)
        state = jax.vmap(env.reset, (0, None))(keys, env.default_params)[0]

        def step(state: Any, i: Any) -> Any:
            own = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
            actions = jax.vmap(env.action_space.sample)(own)
            state, after = jax.vmap(env.step, (0, 0, 0, None))(own, state, actions, env.default_params)
            return state, after.reward.sum()

        return jax.lax.scan(step, state, jnp.arange(count))[1].sum()

    compiled = jax.jit(run_with_resets if resets else run).lower(jax.random.key(0)).compile()

    def begin() -> Call:
        key = jax.random.key(1)

        def call() -> Any:
            nonlocal key
            key = jax.random.fold_in(key, 1)
            jax.block_until_ready(compiled(key))
            return {"env_steps": jnp.int32(envs)}

        return call

    return begin


def compile_shared_policy(envs: int, tiny: bool) -> Begin:
    """Compile an evaluation of one policy of 256, 256 on CartPole, an episode in each of `envs` environments."""
    import jax

    from evorl.parts import resolve_numbers

    workflow = replace(evolution("openes", 16, tiny), eval_episodes=64 if tiny else envs)
    init = jax.jit(workflow.init).lower(jax.random.key(0), resolve_numbers(workflow)).compile()
    shapes = jax.eval_shape(workflow.init, jax.random.key(0), resolve_numbers(workflow))
    compiled = jax.jit(workflow.evaluate).lower(shapes, jax.random.key(0)).compile()

    def begin() -> Call:
        state, key = init(jax.random.key(0), resolve_numbers(workflow)), jax.random.key(7)

        def call() -> Any:
            nonlocal key
            key = jax.random.fold_in(key, 1)
            metrics = dict(compiled(state, key))
            steps = metrics.get("env_steps", metrics["episode_length"] * workflow.eval_episodes)
            return {"env_steps": steps}

        return call

    return begin


def compile_brax(which: str, name: str, tiny: bool) -> Begin:
    """Compile Brax's own PPO or SAC at the sizes of `ppo` and `off_policy`; a call is one training.

    Its programs are compiled by a short training and then are in the compilation cache. The metric env_steps_per_s is
    the trainer's own training/sps after its first evaluation point.
    """
    import jax
    import jax.numpy as jnp

    patch_brax(jax, jnp)
    from brax import envs
    from brax.training.agents.ppo import networks as ppo_networks
    from brax.training.agents.ppo import train as brax_ppo
    from brax.training.agents.sac import networks as sac_networks
    from brax.training.agents.sac import train as brax_sac

    wide = (8,) if tiny else HIDDEN
    if tiny:
        env, wrap = envs.get_environment("fast"), {}
    elif "/" in name:
        env, wrap = envs.get_environment(name.partition("/")[0], backend=name.partition("/")[2]), {}
    else:
        from mujoco_playground import registry, wrapper  # pyright: ignore[reportMissingImports]  optional dependency

        env = registry.load(name, config_overrides={"impl": "jax"})
        wrap = {"wrap_env_fn": wrapper.wrap_for_brax_training}
    common = {"environment": env, "episode_length": 1000, "normalize_observations": True, **wrap}
    if which == "ppo":
        num = 16 if tiny else 4096
        sizes = {"num_envs": num, "unroll_length": 16, "batch_size": num // 8, "num_minibatches": 8}
        nets = partial(ppo_networks.make_ppo_networks, policy_hidden_layer_sizes=wide, value_hidden_layer_sizes=wide)
        own = {"num_updates_per_batch": 4, "run_evals": False, "network_factory": nets, "num_eval_envs": 16}
        train, step = partial(brax_ppo.train, **common, **sizes, **own), num * 16
    else:
        num = 8 if tiny else 128
        nets = partial(sac_networks.make_sac_networks, hidden_layer_sizes=wide)
        own = {"num_envs": num, "batch_size": 256, "grad_updates_per_step": 64, "max_replay_size": 200 * num}
        own |= {"episode_length": 100}  # of evaluations, which are not timed; a reset copies the first state
        train = partial(brax_sac.train, **common | own, min_replay_size=2 * num, network_factory=nets, num_eval_envs=16)
        step = num

    def run(iterations: int) -> float:
        speeds: list[float] = []

        def note(steps: int, metrics: Any) -> None:
            del steps
            speeds.extend(float(metrics[key]) for key in ("training/sps",) if key in metrics)

        train(num_timesteps=iterations * step, num_evals=4, progress_fn=note)
        return statistics.median(speeds[1:] or speeds)

    short = 6 if tiny else 12
    run(short)

    def begin() -> Call:
        return lambda: {"env_steps": jnp.int32(step), "env_steps_per_s": run(short if tiny else 60)}

    return begin


def compile_side(module: str, function: str, arguments: tuple[Any, ...]) -> Begin:
    """Compile a side of the comparison with other libraries; a call is a round, and its work counts as env_steps."""
    import jax
    import jax.numpy as jnp

    from evorl.deferred_imports import import_deferring

    import_deferring("gymnax", "matplotlib", "seaborn")  # which evosax imports too
    scripts = Path(__file__).parent
    sys.path += [str(scripts / name) for name in ("comparison", "comparison/sides", "benchmarks")]
    make = partial(getattr(importlib.import_module(module), function), *arguments)
    jax.config.update("jax_enable_compilation_cache", True)  # which sides disable at their import
    make()(0)

    def begin() -> Call:
        one, i = make(), 0
        one(i)

        def call() -> Any:
            nonlocal i
            i += 1
            return {"env_steps": jnp.float32(one(i)["work"])}

        return call

    return begin


def patch_brax(jax: Any, jnp: Any) -> None:
    """Give Brax 0.14's trainers what newer JAX versions removed: a_min and a_max of clip, and device_put_replicated."""
    clip = jnp.clip

    def clip_as_before(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
        return clip(x, a_min if min is None else min, a_max if max is None else max)

    jnp.clip = clip_as_before
    if not hasattr(jax, "device_put_replicated"):
        jax.device_put_replicated = lambda x, devices: jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (len(devices), *jnp.shape(leaf))), x
        )


def make_timed() -> dict[str, Timed]:
    """Return the timed jobs, by stage and in the order of their worth."""
    found: dict[str, Timed] = {}

    def add(name: str, make: Callable[[bool], Any], count: int = 1, seeds: int = 1, flags: str = "") -> None:
        """Add the training of a workflow, which is a function of tiny."""
        found[name] = Timed(
            lambda tiny: compile_training(make(tiny), 2 if tiny and seeds > 1 else seeds, count), count, flags
        )

    for task in ("ant/spring", "CheetahRun"):
        add(f"S2 PPO {task}", partial(ppo, task))
        found[f"S2 Brax PPO {task}"] = Timed(partial(compile_brax, "ppo", task))
        add(f"S2 SAC {task}", lambda tiny, task=task: off_policy("sac", task, tiny, 128, 64), 4)
        found[f"S2 Brax SAC {task}"] = Timed(partial(compile_brax, "sac", task))
    for members in (1, 8, 64, 256):
        add(f"S3 PBT of {members}", lambda tiny, n=members: pbt(tiny, min(n, 2) if tiny else n))
    for evolver, sizes in (("openes", (4096, 32_768)), ("low_rank", (2**17, 2**20))):
        for size in sizes:
            add(f"S4 {evolver} {size}", partial(evolution, evolver, size))
    found["S4 one policy 1048576"] = Timed(partial(compile_shared_policy, 2**20))
    add("S4 map_elites", lambda tiny: configured(f"agent=map_elites {NO_ROBOT if tiny else 'env=feet'}", tiny, SHORT))
    cem_rl = "agent=cemrl env.max_episode_steps=100 agent.workflow.random_steps=64 agent.workflow.capacity=100_000"
    add("S4 cemrl ant, 100 steps", lambda tiny: configured(f"{cem_rl} env={'fast' if tiny else 'ant'}", tiny, SHORT))
    for resets in ("with", "without"):
        found[f"S5 maze steps, {resets} resets"] = Timed(partial(compile_mazes, resets == "with"), 200)
    for agent in ("ppo", "plr", "accel"):
        small = "agent.workflow.num_envs=8" if agent == "ppo" else "agent.inner.workflow.num_envs=2"
        add(f"S5 {agent} maze", lambda tiny, a=agent, small=small: configured(f"agent={a} env=maze", tiny, small))
    pendulum = "inverted_pendulum/spring"
    for which in ("td3", "sac"):
        for envs in (1, 128, 1024):
            add(f"S6 {which} {envs} envs", lambda tiny, w=which, n=envs: off_policy(w, pendulum, tiny, n), 64)
        alone = partial(off_policy, which, pendulum, envs=1)
        add(f"S6 {which} 1 env, loops on the GPU", alone, 64, flags=ON_DEVICE_LOOPS)
        found[f"S6 {which} 1 env, user's loop"] = Timed(lambda tiny, make=alone: compile_loop(make(tiny), 64), 64)
    for seeds in (1, 64):
        add(f"S6 PPO cartpole, {seeds} seeds", partial(configured, "agent=ppo env=cartpole"), 4, seeds)
    physics = {"inverted_pendulum/spring": 2, "inverted_pendulum/generalized": 2}
    physics |= dict.fromkeys(("ant/spring", "ant/generalized", "CheetahRun", "mjx/Hopper-v5", "mjx/Ant-v5"), 4096)
    for name, envs in physics.items():
        found[f"S6 physics {name}, {envs} envs"] = Timed(partial(compile_physics, name, envs), 16)
    for job, (topic, function, sizes, small, libraries) in PEERS.items():
        for library in libraries:
            module = f"{topic}_{library}"
            found[f"S9 {job}: {library}"] = Timed(
                lambda tiny, m=module, f=function, large=sizes, small=small: compile_side(
                    m, f, small if tiny else large
                )
            )
    return found


def compile_physics(name: str, envs: int, tiny: bool) -> Begin:
    """Compile 16 steps of physics."""
    return compile_steps(make_physics(name, tiny), min(envs, 8) if tiny else envs, 16, False)


def compile_mazes(resets: bool, tiny: bool) -> Begin:
    """Compile 200 steps of 65,536 mazes."""
    from evorl.envs.maze import Maze

    return compile_steps(Maze(), 64 if tiny else 65_536, 200, resets)


def make_commands() -> dict[str, Command]:
    """Return the jobs that run commands."""
    found = {
        f"S1 {name}": Command(f"train {arguments} iterations=3", TINY.get(name, ""))
        for name, arguments in FAMILIES.items()
    }
    found["S6 sweep of 64 trials"] = Command(
        "sweep agent=ppo env=cartpole env_steps=50_000 trials=64 vmapped=64", "trials=2 vmapped=2 env_steps=2_000"
    )
    same = "train agent=ppo env=cartpole iterations=20 deterministic=true"
    found["S7 two processes"] = Command(same, "iterations=2", 2, share=0.45)
    found["S7 sweep by two workers"] = Command(
        "sweep agent=ppo env=cartpole env_steps=50_000 trials=4 workers=2", "trials=2 env_steps=2_000"
    )
    found["S8 PPO CheetahRun"] = Command(
        "train experiment=playground/ppo_cheetah_run",
        "experiment=null agent=ppo env=fast agent.workflow.num_envs=8 env_steps=2_000 evaluations=2",
        metrics=("return", "env_steps", "seconds"),
    )
    found["S8 PBT CheetahRun"] = Command(
        "train agent=pbt agent/inner=ppo env=playground/CheetahRun minutes=4",
        "env=fast minutes=null iterations=1",
        metrics=("return", "return_best", "env_steps", "seconds"),
    )
    return found


def measure_limits(tiny: bool) -> dict[str, Any]:
    """Measure the limits of the device: TFLOP/s of matrix products, their relative error, and GB/s of copies."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    size, count = (256, 2) if tiny else (4096, 50)
    x, found = jnp.ones((size, size)), {}
    a, b = (jax.random.normal(jax.random.key(i), (512, 512)) for i in range(2))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    for precision in ("default", "highest"):
        product = partial(jnp.dot, precision=precision)
        many = jax.jit(
            lambda x, product=product: jax.lax.fori_loop(0, count, lambda i, y: product(y, x) / x.shape[0], x)
        )
        jax.block_until_ready(many(x))
        began = time.perf_counter()
        jax.block_until_ready(many(x))
        found[f"tflops_{precision}"] = 2 * size**3 * count / (time.perf_counter() - began) / 1e12
        error = np.asarray(product(a, b), np.float64) - exact
        found[f"error_{precision}"] = float(np.linalg.norm(error) / np.linalg.norm(exact))
    y = jnp.ones(1 << (20 if tiny else 28))
    add = jax.jit(lambda y: y + 1, donate_argnums=0)
    y = jax.block_until_ready(add(y))
    began = time.perf_counter()
    for _ in range(10):
        y = add(y)
    jax.block_until_ready(y)
    return found | {"copy_gbs": 10 * 2 * y.nbytes / (time.perf_counter() - began) / 1e9}


def describe_machine() -> dict[str, Any]:
    """Return the device, the versions of the packages, the date, and the number of cores."""
    import jax

    from evorl import package

    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        **package.versions(),
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
    }


def time_job(job: Timed, tiny: bool) -> dict[str, Any]:
    """Compile a job, wait for a line on standard input, and time it in milliseconds per iteration."""
    from evorl.training.devices import enable_compilation_cache

    enable_compilation_cache()
    began = time.perf_counter()
    begin = job.compiles(tiny)
    compiled = time.perf_counter() - began
    print("ready", flush=True)
    sys.stdin.readline()
    import jax

    began = time.perf_counter()
    call = begin()
    metrics = jax.block_until_ready(call())
    first = time.perf_counter() - began
    seconds = [first] if "env_steps_per_s" in metrics else []  # a whole training excludes its own compilation
    while not seconds or (len(seconds) < 20 and sum(seconds) < 4 and not tiny):
        began = time.perf_counter()
        metrics = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    steps = float(metrics["env_steps"].sum())
    each = statistics.median(seconds) / job.count
    speed = float(metrics["env_steps_per_s"]) if "env_steps_per_s" in metrics else steps / each
    peaks = [(one.memory_stats() or {}).get("peak_bytes_in_use", 0) for one in jax.local_devices()]
    return {
        "ms": 1000 * (steps / speed if "env_steps_per_s" in metrics else each),
        "calls": len(seconds),
        "compile_s": compiled,
        "first_s": first,
        "env_steps": steps,
        "env_steps_per_s": speed,
        "peak_mb": sum(peaks) / 1e6,
    }


def start_command(
    job: Command, tiny: bool, folders: list[str], environment: dict[str, str]
) -> list[subprocess.Popen[str]]:
    """Start the processes of a command, each with its own run or sweep folder."""
    tool, *arguments = job.arguments.split()
    more = job.tiny.split() if tiny else []
    kept = [one for one in arguments if one.partition("=")[0] not in {word.partition("=")[0] for word in more}]
    place = {"train": "run_dir", "sweep": "sweep_dir"}[tool]
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(job.share)} if job.share else {}
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"evorl.{tool}", *kept, *more, "tensorboard=false", f"{place}={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment | share,
        )
        for folder in folders
    ]
