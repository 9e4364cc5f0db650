"""U2: an iteration of PPO with an LSTM on random mazes, evorl's beside a loop of jaxued's maze and its ResetRNN.

python scripts/benchmarks/peers_jaxued.py [--repeats 9] [--core lstm]     after pip install --no-deps jaxued==0.0.1

32 environments of 256 steps, 13 x 13 mazes of 60 wall draws, 5 epochs of one minibatch, 433k weights on both sides.
jaxued 0.0.1 has no trainer: this loop has what its maze experiments have, which is less than evorl's does (a truncation
counts as an end, whose value is 0; next observations are not valued). Medians in turn, one process, quiet machine.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from peers_timing import Program, medians, surroundings
from workloads import jitted

from evorl import tree
from evorl.agents import PolicyGradient, PPOHyperparams
from evorl.envs.maze import Maze, RandomWalls
from evorl.networks.encoders import CNN
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.workflows import OnPolicy
from evorl.workflows.passes import standardized

ENVS, STEPS, EPOCHS = 32, 256, 5
RATE, DISCOUNT, DECAY, CLIP = 1e-4, 0.995, 0.98, 0.2
CORES = {"lstm": LSTM(256), "gru": GRU(256), "s5": S5()}


def evorl_ppo(core: Any) -> tuple[OnPolicy, PPOHyperparams]:
    """The workflow of U2, and its hyperparameters."""
    env = Maze(RandomWalls(fewest=60, most=60))
    agent = PolicyGradient(
        env.observation_space, env.action_space, hidden=(32,), activation="tanh", encoder=CNN(embedding=5), core=core
    )
    workflow = OnPolicy(
        env,
        agent,
        num_envs=ENVS,
        num_steps=STEPS,
        num_epochs=EPOCHS,
        batch_size=ENVS * STEPS,
        normalize_observations=False,
        normalize_values=False,
    )
    return workflow, PPOHyperparams(
        learning_rate=RATE,
        discount=DISCOUNT,
        gae_lambda=DECAY,
        critic_weight=0.5,
        entropy_weight=1e-3,
        max_grad_norm=0.5,
    )


class Student(nn.Module):
    """The same network of flax's and jaxued's parts."""

    actions: int

    @nn.compact
    def __call__(self, obs: Any, ended: jax.Array, carry: Any) -> tuple[Any, jax.Array, jax.Array]:
        from jaxued.linen import ResetRNN  # pyright: ignore[reportMissingImports]

        x = nn.relu(nn.Conv(16, (3, 3), padding="VALID")(obs.image))
        direction = nn.Dense(5)(jax.nn.one_hot(obs.agent_dir, 4))
        x = jnp.concatenate([x.reshape(*x.shape[:-3], -1), direction], axis=-1)
        carry, x = ResetRNN(nn.OptimizedLSTMCell(256))((x, ended), initial_carry=carry)
        head = lambda n: nn.Dense(n)(nn.tanh(nn.Dense(32)(x)))  # noqa: E731
        return carry, head(self.actions), head(1)[..., 0]


def jaxued_ppo() -> tuple[Any, Callable[..., Any]]:
    """The state before the first iteration, and the iteration."""
    from jaxued.environments import Maze as Peer  # pyright: ignore[reportMissingImports]
    from jaxued.environments.maze import make_level_generator  # pyright: ignore[reportMissingImports]
    from jaxued.wrappers import AutoResetWrapper  # pyright: ignore[reportMissingImports]

    raw = Peer(max_height=13, max_width=13, agent_view_size=5, normalize_obs=True)
    sample = make_level_generator(13, 13, 60)
    env, params = AutoResetWrapper(raw, sample), raw.default_params
    student: Any = Student(raw.action_space(params).n)
    carry = nn.OptimizedLSTMCell(256).initialize_carry(jax.random.key(0), (ENVS, 256))
    keys = jax.random.split(jax.random.PRNGKey(0), ENVS)  # old keys, which it makes itself too
    levels = jax.vmap(sample)(keys)
    obs, env_state = jax.vmap(env.reset_to_level, (0, 0, None))(keys, levels, params)
    along = lambda x: jax.tree.map(lambda leaf: leaf[None], x)  # noqa: E731
    weights = student.init(jax.random.key(1), along(obs), jnp.zeros((1, ENVS), bool), carry)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE, eps=1e-5))
    state = TrainState.create(apply_fn=student.apply, params=weights, tx=optimizer)

    def iterate(loop: Any, key: jax.Array) -> tuple[Any, Any]:
        state, carry, obs, ended, env_state = loop
        first = carry

        def act(loop: Any, key: jax.Array) -> tuple[Any, Any]:
            carry, obs, ended, env_state = loop
            key_act, key_step = jax.random.split(key)
            carry, logits, value = student.apply(state.params, along(obs), along(ended), carry)
            action = jax.random.categorical(key_act, logits[0])
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits[0]), action[:, None], 1)[:, 0]
            keys = jax.random.split(key_step, ENVS)
            after, env_state, reward, over, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, env_state, action, params)
            return (carry, after, over, env_state), (obs, ended, action, log_prob, value[0], reward, over)

        key_roll, key_epochs = jax.random.split(key)
        (carry, obs, ended, env_state), rows = jax.lax.scan(
            act, (carry, obs, ended, env_state), jax.random.split(key_roll, STEPS)
        )
        seen, begun, action, log_prob, value, reward, over = rows
        last = student.apply(state.params, along(obs), along(ended), carry)[2][0]

        def back(loop: Any, row: Any) -> tuple[Any, jax.Array]:
            advantage, following = loop
            value, reward, over = row
            error = reward + DISCOUNT * following * (1 - over) - value
            advantage = error + DISCOUNT * DECAY * (1 - over) * advantage
            return (advantage, value), advantage

        _, advantage = jax.lax.scan(back, (jnp.zeros(ENVS), last), (value, reward, over), reverse=True)
        target = advantage + value
        batch = seen, begun, action, log_prob, (advantage - advantage.mean()) / (advantage.std() + 1e-8), target

        def loss(weights: Any, batch: Any, first: Any) -> jax.Array:
            seen, begun, action, log_prob, advantage, target = batch
            _, logits, value = student.apply(weights, seen, begun, first)
            log_probs = jax.nn.log_softmax(logits)
            now = jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0]
            ratio = jnp.exp(now - log_prob)
            gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
            entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
            return -gain + 0.25 * ((value - target) ** 2).mean() - 1e-3 * entropy

        def epoch(state: Any, key: jax.Array) -> tuple[Any, None]:
            order = jax.random.permutation(key, ENVS)
            shuffled = jax.tree.map(lambda x: x[:, order], batch), jax.tree.map(lambda x: x[order], first)
            return state.apply_gradients(grads=jax.grad(loss)(state.params, *shuffled)), None

        state, _ = jax.lax.scan(epoch, state, jax.random.split(key_epochs, EPOCHS))
        return (state, carry, obs, ended, env_state), reward.mean()

    return (state, carry, obs, jnp.zeros(ENVS, bool), env_state), iterate


def parts(workflow: OnPolicy, hyperparams: PPOHyperparams, state: Any) -> dict[str, Program]:
    """The bound: environment, policy and gradient steps, each jitted alone at the same shapes and trip counts."""
    env, agent, key = workflow.env, workflow.agent, jax.random.key(0)
    num_actions: int = env.action_space.n  # pyright: ignore[reportAttributeAccessIssue]  # of a maze
    keys = jax.random.split(key, ENVS)
    params = state.agent.actor.params
    begun, obs = jax.vmap(env.reset, (0, None))(keys, env.default_params)
    memory = tree.broadcast(agent.memory(), ENVS)
    rollout = jax.jit(lambda state: workflow.collect(state, key)[1])(state)

    def normalized(state: Any, rollout: Any) -> Any:
        batch = workflow.batch(state, rollout)
        return workflow.segments(replace(batch, advantage=standardized(batch.advantage)))

    segments = jax.jit(normalized)(state, rollout)

    def physics(states: Any) -> Any:
        def step(states: Any, i: jax.Array) -> tuple[Any, Any]:
            actions = jax.random.randint(jax.random.fold_in(key, i), (ENVS,), 0, num_actions)
            after, timestep = jax.vmap(env.step, (0, 0, 0, None))(keys, states, actions, env.default_params)
            return after, timestep.obs

        return jax.lax.scan(step, states, jnp.arange(STEPS))

    def policy(obs: Any, memory: Any) -> Any:
        def step(memory: Any, i: jax.Array) -> tuple[Any, Any]:
            each = jax.vmap(lambda obs, memory, key: agent.act(params, obs, memory, key, hyperparams))
            action, memory, extras = each(obs, memory, jax.random.split(jax.random.fold_in(key, i), ENVS))
            return memory, (action, extras)

        return jax.lax.scan(step, memory, jnp.arange(STEPS))

    def gradients(learner: Any, segments: Any) -> Any:
        def epoch(i: jax.Array, learner: Any) -> Any:
            del i
            return agent.update(learner, lambda params: agent.loss(params, segments, hyperparams), hyperparams)[0]

        return jax.lax.fori_loop(0, EPOCHS, epoch, learner)

    targets = lambda state, rollout: workflow.batch(state, rollout)  # noqa: E731
    work = ENVS * STEPS
    return {
        "environment": Program(physics, (begun,), work),
        "policy": Program(policy, (obs, memory), work),
        "targets": Program(targets, (state, rollout), work),
        "gradients": Program(gradients, (state.agent, segments), work),
    }


def main() -> None:
    jax.tree_map = jax.tree.map  # pyright: ignore  # its name in the jax of jaxued's time
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--core", choices=CORES, default="lstm")
    options = parser.parse_args()
    workflow, hyperparams = evorl_ppo(CORES[options.core])
    state = jax.jit(workflow.init)(jax.random.key(0), hyperparams)
    state = jitted(workflow.step)(state, jax.random.key(1))[0]
    print(
        f"{sum(x.size for x in jax.tree.leaves(state.agent.actor.params)):,} weights; {surroundings(options.repeats)}"
    )
    programs = {"evorl": Program(workflow.step, (state, jax.random.key(2)), ENVS * STEPS)}
    bound = parts(workflow, hyperparams, state)
    if options.core == "lstm":
        loop, iterate = jaxued_ppo()
        programs["jaxued"] = Program(iterate, (loop, jax.random.PRNGKey(2)), ENVS * STEPS)
    programs |= bound
    for program in programs.values():
        program.compile()
    for _ in range(options.repeats):
        for program in programs.values():
            program.run()
    seconds = {name: medians(program.times[1:]) for name, program in programs.items()}
    for name, (wall, cpu) in seconds.items():
        print(f"{name:12} {wall:7.3f} s wall {cpu:7.3f} s CPU   compile {programs[name].compile_cpu_s:5.1f} CPU s")
    sums = [sum(seconds[name][i] for name in bound) for i in (0, 1)]
    print("over the bound: wall {:.2f}, CPU {:.2f}".format(*(seconds["evorl"][i] / sums[i] for i in (0, 1))))
    if "jaxued" in seconds:
        ratios = (seconds["evorl"][i] / seconds["jaxued"][i] for i in (0, 1))
        print("over jaxued: wall {:.2f}, CPU {:.2f}".format(*ratios))


if __name__ == "__main__":
    main()
