"""Define the workloads of benchmark.py: workflows at the sizes of the comparison, and the parts that bound their steps.

The bound of E5 and E6 (PBT and PBT-CSO on PPO) has the parts of all members, vmapped.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from evorl import CEM, CEMRL, TD3, Brax, OffPolicy, tree
from evorl.agents import PPO, SAC, MLPPolicy, TrainState
from evorl.ec import OpenES
from evorl.parts import resolve_numbers
from evorl.population import NoSelection, Pairs, Swarm, Truncation
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.replay.row_layout import RowLayout
from evorl.training.devices import compiler_options
from evorl.workflows import PBT, Evolution, OnPolicy, Vmapped

KEY = jax.random.key(0)


jitted = partial(jax.jit, compiler_options=compiler_options())  # the options of trainings


def repeat(count: int, body: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
    return jax.lax.fori_loop(0, count, body, carry)


def compile_parts(parts: dict, replay: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return for each part how often an iteration runs it, and a function that runs it alone, compiled at first.

    Args:
        parts: A part is (function, *arguments), or (count, function, *arguments) if an iteration runs it `count` times.
        replay: Replay buffer of the part "scatter", which is donated.
    """

    def make(part: str, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        if part != "scatter":
            return partial(jitted(function), *args)
        donated, held = jitted(function, donate_argnums=0), [jax.tree.map(jnp.copy, replay)]

        def run() -> Any:
            held[0] = donated(held[0])
            return held[0]

        return run

    counted = {part: what if isinstance(what[0], int) else (1, *what) for part, what in parts.items()}
    return {part: (what[0], make(part, *what[1:])) for part, what in counted.items()}


def interaction_parts(workflow: Any, act: Callable[..., Any], params: Any, params_axis: int | None, steps: int) -> dict:
    """Return the environment scan and the policy forward pass, act(params, obs, key), of all environments."""
    env, n = workflow.env, workflow.vector_env.num_envs
    states, obs = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, n), ())
    actions = jnp.zeros((n, *env.action_space.shape))

    def physics(states: Any, actions: jax.Array) -> Any:
        step = lambda states, _: jax.vmap(env.step, (None, 0, 0, None))(KEY, states, actions, ())  # noqa: E731
        return jax.lax.scan(step, states, length=steps)

    def forward(obs: jax.Array) -> Any:
        def step(obs: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            keys = jax.random.split(jax.random.fold_in(KEY, i), n)
            action = jax.vmap(act, (params_axis, 0, 0))(params, obs, keys)
            return obs + 1e-3 * action.sum(), None

        return jax.lax.scan(step, obs, jnp.arange(steps))

    return {"environment": (physics, states, actions), "policy": (forward, obs)}


def replay_part(state: Any, n: int, steps: int, chunk: int) -> dict:
    """Return the scatter of the rows of n environments into the replay buffer."""
    rows = state.replay.sample(KEY, (chunk * n,)).rows
    mask = jnp.ones(chunk * n, bool)

    def scatter(replay: Any) -> Any:
        return repeat(-(-steps // chunk), lambda i, replay: replay.add(rows, mask), replay)

    return {"scatter": (scatter,)}


def cem_rl_parts(workflow: CEMRL, state: Any, updates: int, steps: int) -> dict:
    workflow = workflow.bound(state)
    evolver, agent = workflow.evolver, cast(Any, workflow.agent)
    n, m = evolver.population_size, workflow.num_learners
    genomes = jax.jit(evolver.ask)(KEY, state.evolver)[0]
    batches = state.replay.sample(KEY, (m, workflow.batch_size)).rows
    keys = jax.random.split(KEY, m)

    def gradients(genomes: Any) -> Any:
        learners = state.agent.replace(actor=jax.vmap(TrainState.create)(tree.index(genomes, slice(0, m))))

        def update(i: jax.Array, agents: Any) -> Any:
            def critic_loss(params: Any) -> Any:
                def each(actor: Any, batch: Any, key: jax.Array) -> Any:
                    return agent.critic_loss(params, agents.replace(actor=actor), batch, key)

                return tree.mean(jax.vmap(each)(agents.actor, batches, keys))

            agents = agent.update_critic(agents, critic_loss)[0]

            def actor_update(actor: Any, batch: Any) -> Any:
                own = agents.replace(actor=actor)
                return agent.update_actor(own, lambda p: agent.actor_loss(p, own, batch, KEY))[0].actor

            return agent.update_targets(agents.replace(actor=jax.vmap(actor_update)(agents.actor, batches)))

        return repeat(updates, update, learners)

    def gather(key: jax.Array) -> Any:
        def sample(i: jax.Array, total: Any) -> Any:
            rows = state.replay.sample(jax.random.fold_in(key, i), (m, workflow.batch_size)).rows
            return jax.tree.map(jnp.add, total, rows.replace(terminated=rows.reward, truncated=rows.reward))

        return repeat(updates, sample, batches.replace(terminated=batches.reward, truncated=batches.reward))

    tell = partial(evolver.tell, KEY, genomes, jnp.arange(float(n)))
    greedy = lambda params, obs, key: agent.to_action(agent.actor.apply(params, obs))  # noqa: E731
    parts = interaction_parts(workflow, greedy, genomes, 0, steps) | replay_part(state, n, steps, workflow.scan_length)
    return parts | {
        "gradients": (gradients, genomes),
        "gather": (gather, KEY),
        "ask": (evolver.ask, KEY, state.evolver),
        "tell": (tell, state.evolver),
    }


def off_policy_parts(workflow: OffPolicy, state: Any) -> dict:
    workflow = workflow.bound(state)
    agent, updates = cast(Any, workflow.agent), workflow.num_updates
    batch = state.replay.sample(KEY, (workflow.batch_size,)).rows

    def gradients(agents: Any) -> Any:
        def block(i: jax.Array, agents: Any) -> Any:
            def critic(i: jax.Array, agents: Any) -> Any:
                return agent.update_critic(agents, lambda p: agent.critic_loss(p, agents, batch, KEY))[0]

            agents = repeat(workflow.critic_steps, critic, agents)
            agents = agent.update_actor(agents, lambda p: agent.actor_loss(p, agents, batch, KEY))[0]
            return agent.update_targets(agents)

        return repeat(updates // workflow.critic_steps, block, agents)

    def gather(key: jax.Array) -> Any:
        def sample(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + state.replay.sample(jax.random.fold_in(key, i), (workflow.batch_size,)).rows.reward

        return repeat(updates, sample, batch.reward)

    steps = workflow.num_steps
    act = lambda params, obs, key: agent.act(params, obs, None, key)[0]  # noqa: E731
    parts = interaction_parts(workflow, act, state.agent.actor.params, None, steps)
    parts |= replay_part(state, workflow.num_envs, steps, workflow.vector_env.scan_length)
    return parts | {"gradients": (gradients, state.agent), "gather": (gather, KEY)}


def on_policy_parts(workflow: OnPolicy, state: Any) -> dict:
    workflow = workflow.bound(state)
    agent, size = cast(Any, workflow.agent), workflow.batch_size // workflow.segment_length
    params = state.agent.actor.params
    transitions = workflow.collect(state, KEY)[1]
    batch = workflow.split_batch(agent.build_batch(params, transitions, acted_by_current_params=True))
    layout = RowLayout.from_row(jax.eval_shape(lambda: tree.index(batch, 0)))

    def act(params: Any, obs: jax.Array, key: jax.Array) -> Any:
        return agent.act(params, obs, None, key)[0]

    def gradients(agents: Any, tables: Any) -> Any:
        def update(agents: Any, tables: Any) -> Any:
            rows = layout.unpack(tables)
            return agent.update(agents, lambda p: agent.loss(p, rows))[0], None

        batches = jax.tree.map(lambda x: x.reshape(-1, size, x.shape[-1]), tables)
        return repeat(workflow.num_epochs, lambda i, agents: jax.lax.scan(update, agents, batches)[0], agents)

    def shuffle(tables: Any) -> Any:
        def once(i: jax.Array, tables: Any) -> Any:
            order = jax.random.permutation(
                jax.random.fold_in(KEY, i), workflow.num_transitions // workflow.segment_length
            )
            return tree.index(tables, order)

        return repeat(workflow.num_epochs, once, tables)

    tables = layout.pack(batch)
    return interaction_parts(workflow, act, params, None, workflow.num_steps) | {
        "targets": (lambda t: agent.build_batch(params, t, acted_by_current_params=True), transitions),
        "gradients": (gradients, state.agent, tables),
        "shuffle": (shuffle, tables),
    }


def pbt_parts(workflow: PBT, state: Any) -> dict:
    """Return the parts of all members in a generation, vmapped.

    They are the parts of each training step, and of the evaluation episodes.
    """
    inner, members = workflow.population.inner, replace(state.members, env_params=None)
    episodes = replace(inner, num_envs=inner.eval_episodes, num_steps=inner.env.max_episode_steps, batch_size=1)

    def of_all(one: Any, name: str) -> tuple[Any, ...]:
        arguments = jax.jit(jax.vmap(lambda member: one(member)[name][1:]))(members)
        function = jax.vmap(lambda member, arguments: one(member)[name][0](*arguments))
        return function, members, arguments

    def step(member: Any) -> dict:
        return on_policy_parts(inner, member)

    def evaluation(member: Any) -> dict:
        act = lambda params, obs, key: inner.agent.mode(params, obs, None, key)[0]  # noqa: E731
        return interaction_parts(episodes, act, member.agent.actor.params, None, episodes.num_steps)

    names = jax.eval_shape(lambda member: dict.fromkeys(step(member), 0), tree.index(members, 0))
    parts = {name: (workflow.steps_per_generation, *of_all(step, name)) for name in names}
    return parts | {f"{name} of episodes": of_all(evaluation, name) for name in ("environment", "policy")}


def evolution_parts(workflow: Evolution, state: Any, steps: int) -> dict:
    workflow = workflow.bound(state)
    evolver, agent = workflow.evolver, workflow.agent
    genomes = jax.jit(evolver.ask)(KEY, state.evolver)[0]
    fitness = jnp.arange(float(evolver.population_size))
    ask = lambda state: evolver.ask(KEY, state)  # noqa: E731
    tell = lambda state: evolver.tell(KEY, genomes, fitness, state)  # noqa: E731

    def greedy(params: Any, obs: jax.Array, key: jax.Array) -> Any:
        return agent.mode(params, state.obs_statistics.normalize(obs), None, key)[0]

    parts = interaction_parts(workflow, greedy, genomes, 0, steps)
    return parts | {"ask": (ask, state.evolver), "tell": (tell, state.evolver)}


def openes(population_size: int, steps: int) -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return OpenES on swimmer: one episode per member, network [256, 256], virtual batch normalization."""
    env = Brax("swimmer", max_episode_steps=steps)
    policy = MLPPolicy(hidden=(256, 256))
    workflow = Evolution(env, policy, OpenES(population_size))
    return (
        workflow,
        resolve_numbers(workflow),
        1,
        lambda workflow, state, _: evolution_parts(workflow, state, steps),
    )


def cem_rl(env: Brax, updates: int, capacity: int) -> CEMRL:
    agent = TD3(layer_norm=True)
    return CEMRL(
        env,
        agent,
        CEM(),
        min_updates=updates,
        max_updates=updates,
        capacity=capacity,
        random_steps=2_000,
        scan_length=20,
    )


def e4() -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return CEM-RL on swimmer: population 10, episodes of 100 steps, 64 updates."""
    workflow = cem_rl(Brax("swimmer", max_episode_steps=100), 64, 100_000)
    return (
        workflow,
        resolve_numbers(workflow),
        1,
        lambda workflow, state, _: cem_rl_parts(workflow, state, 64, 100),
    )


def count_longest_episode(workflow: CEMRL, state: Any) -> int:
    """Return the number of steps of the longest greedy episode of a population, in whole chunks."""
    env, agent, evolver = workflow.env, cast(Any, workflow.agent), workflow.evolver
    genomes = jax.jit(evolver.ask)(KEY, state.evolver)[0]
    states, obs = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, evolver.population_size), ())

    def step(loop: Any) -> Any:
        count, playing, states, obs = loop
        action = jax.vmap(lambda params, obs: agent.mode(params, obs, None, KEY)[0])(genomes, obs)
        states, found = jax.vmap(env.step, (None, 0, 0, None))(KEY, states, action, ())
        return count + 1, playing & ~(found.terminated | found.truncated), states, found.obs

    start = jnp.int32(0), jnp.ones(evolver.population_size, bool), states, obs
    count = jitted(lambda start: jax.lax.while_loop(lambda loop: loop[1].any(), step, start)[0])(start)
    return -(-int(count) // workflow.scan_length) * workflow.scan_length


def e10(name: str = "inverted_pendulum") -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return CEM-RL with a time limit of 1,000, from scratch."""
    workflow = cem_rl(Brax(name), 64, 100_000)

    def parts(workflow: CEMRL, state: Any, _: Any) -> dict:
        return cem_rl_parts(workflow, state, 64, count_longest_episode(workflow.bound(state), state))

    return workflow, resolve_numbers(workflow), 1, parts


def e8(name: str = "inverted_pendulum") -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return TD3: 512 iterations of 2 env steps, 2 critic updates and 1 actor update."""
    env = Brax(name)
    agent = TD3()
    workflow = OffPolicy(env, agent, num_envs=2, num_steps=1, num_updates=2, capacity=100_000, random_steps=2_000)
    return workflow, resolve_numbers(workflow), 512, lambda workflow, state, _: off_policy_parts(workflow, state)


def e9(name: str = "inverted_pendulum") -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return SAC with the sizes of E8."""
    env = Brax(name)
    agent = SAC()
    workflow = OffPolicy(env, agent, num_envs=2, num_steps=1, num_updates=2, capacity=100_000, random_steps=2_000)
    return workflow, resolve_numbers(workflow), 512, lambda workflow, state, _: off_policy_parts(workflow, state)


def e7(name: str = "inverted_pendulum") -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return PPO: 64 environments x 32 steps, minibatches of 256, 4 epochs."""
    env = Brax(name)
    agent = PPO()
    workflow = OnPolicy(env, agent, num_envs=64, num_steps=32, num_epochs=4, batch_size=256)
    return workflow, resolve_numbers(workflow), 1, lambda workflow, state, _: on_policy_parts(workflow, state)


def pbt(size: int, **options: Any) -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return PBT on PPO, swimmer: a generation is 2 training steps, then 4 episodes of 100 steps.

    A training step has 8 environments x 64 steps, minibatches of 128 and 4 epochs.
    """
    env = Brax("swimmer", max_episode_steps=100)
    agent = PPO(
        learning_rate=LogUniform(1e-5, 1e-2), clip=Uniform(0.01, 0.5), discount=OneMinus(LogUniform(1e-5, 0.14))
    )
    inner = OnPolicy(env, agent, num_envs=8, num_steps=64, num_epochs=4, batch_size=128, eval_episodes=4)
    names = "learning_rate", "clip", "discount"
    workflow = PBT(Vmapped(inner, size), steps_per_generation=2, search=names, **options)
    return workflow, resolve_numbers(workflow), 1, lambda workflow, state, _: pbt_parts(workflow, state)


def td3_default() -> tuple[Any, Any, int, Callable[..., dict]]:
    """Return TD3 with the defaults: 64 env steps and 64 updates per iteration, 16 iterations."""
    env = Brax("inverted_pendulum")
    workflow = OffPolicy(env, TD3(), random_steps=2_000)
    return workflow, resolve_numbers(workflow), 16, lambda workflow, state, _: off_policy_parts(workflow, state)


WORKLOADS = {
    "E1": partial(openes, 16, 100),
    "E2": partial(openes, 32, 100),
    "E3": partial(openes, 16, 1000),
    "E4": e4,
    "E5-1": partial(pbt, 1, selection=NoSelection()),
    "E5-4": partial(pbt, 4, selection=Truncation(0.25)),
    "E5-8": partial(pbt, 8, selection=Truncation(0.25)),
    "E6": partial(pbt, 8, selection=Pairs(), variation=Swarm()),
    "E7": e7,
    "E7-swimmer": partial(e7, "swimmer"),
    "E8": e8,
    "E8-swimmer": partial(e8, "swimmer"),
    "E9": e9,
    "E9-swimmer": partial(e9, "swimmer"),
    "E10": e10,
    "E10-hopper": partial(e10, "hopper"),
    "TD3-default": td3_default,
}
EVORL_CPU_S = {
    "E1": 0.177,
    "E2": 0.326,
    "E3": 1.715,
    "E4": 3.76,
    "E5-4": 0.96,
    "E5-8": 1.78,
    "E6": 1.70,
    "E7": 0.199,
    "E7-swimmer": 0.332,
    "E8": 5.94,
    "E8-swimmer": 6.58,
    "E9": 6.57,
    "E9-swimmer": 6.57,
    "E10": 4.06,
    "E10-hopper": 4.96,
}
