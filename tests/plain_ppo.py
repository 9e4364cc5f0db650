"""PPO in one file of plain JAX, for one discrete action, with the arithmetic of `OnPolicy(env, PPO())`.

Tests compare evorl's PPO with it, and `scripts/trust/way_to_loss.py` the size of its program.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Config(NamedTuple):
    num_envs: int = 64
    num_steps: int = 32
    num_epochs: int = 4
    batch_size: int = 256
    max_episode_steps: int = 500
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    max_grad_norm: float = 10.0
    learning_rate: float = 3e-4


class Statistics(NamedTuple):
    count: jax.Array
    mean: jax.Array
    sum_of_squares: jax.Array


class State(NamedTuple):
    params: dict
    mean_gradient: dict  # the moments of Adam
    mean_square: dict
    updates: jax.Array
    obs_statistics: Statistics
    reward_statistics: Statistics
    env_state: object
    obs: jax.Array


class Rollout(NamedTuple):
    obs: jax.Array  # [num_steps, num_envs, ...], as all of it
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def apply_mlp(layers, x):
    *hidden, last = [layers[f"Dense_{i}"] for i in range(len(layers))]
    for layer in hidden:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ last["kernel"] + last["bias"]


def apply_network(params, obs):
    """Return the logarithms of the probabilities of each choice, and the value."""
    return jax.nn.log_softmax(apply_mlp(params["policy"], obs)), apply_mlp(params["value"], obs)[..., 0]


def update_statistics(known, x):
    n, mean = len(x), x.mean(0)
    squares, count = ((x - mean) ** 2).sum(0), known.count + n
    moved = mean - known.mean
    both = known.sum_of_squares + squares + moved**2 * known.count * n / count
    return Statistics(count, known.mean + moved * n / count, both)


def normalize(known, obs):
    variance = jnp.where(known.count > 0, known.sum_of_squares / jnp.maximum(known.count, 1), 1)
    return jnp.clip((obs - known.mean) / jnp.sqrt(variance + 1e-8), -10, 10)


def collect(env, state, key, config):
    """Act for num_steps steps in all environments, each of which begins a new episode where one has ended."""

    def step(carry, key):
        env_state, obs = carry
        key_act, key_step, key_reset = jax.random.split(key, 3)
        log_probs, value = apply_network(state.params, normalize(state.obs_statistics, obs))
        action = jax.random.categorical(key_act, log_probs)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
        keys = jax.random.split(key_step, config.num_envs)
        env_state, seen = jax.vmap(env.step, (0, 0, 0, None))(keys, env_state, action, env.default_params)
        fresh = jax.vmap(env.reset, (0, None))(jax.random.split(key_reset, config.num_envs), env.default_params)
        ended = seen.terminated | seen.truncated
        after = jax.tree.map(
            lambda new, old: jnp.where(ended.reshape(-1, *(1,) * (new.ndim - 1)), new, old),
            fresh,
            (env_state, seen.obs),
        )
        outcome = seen.reward, seen.obs, seen.terminated, seen.truncated
        return after, Rollout(obs, action, log_prob, value, *outcome)

    carry = state.env_state, state.obs
    (env_state, obs), rollout = jax.lax.scan(step, carry, jax.random.split(key, config.num_steps))
    return state._replace(env_state=env_state, obs=obs), rollout


def estimate_advantages(state, rollout, config):
    """Return advantages in units of rewards, and targets in units of values [num_steps, num_envs]."""
    horizon = min(1 / (1 - config.discount), config.max_episode_steps)
    size = state.reward_statistics.mean
    scale = jnp.where(size > 0, size, 1) * horizon
    is_cut = rollout.truncated.at[-1].set(True)  # where the successor is not the next row
    beyond = apply_network(state.params, normalize(state.obs_statistics, rollout.next_obs))[1]
    next_value = jnp.where(is_cut, beyond, jnp.roll(rollout.value, -1, 0))
    error = rollout.reward / scale + config.discount * ~rollout.terminated * next_value - rollout.value
    decay = config.discount * config.gae_lambda * ~(rollout.terminated | rollout.truncated)

    def accumulate(later, now):
        advantage = now[0] + now[1] * later
        return advantage, advantage

    _, advantage = jax.lax.scan(accumulate, jnp.zeros_like(error[0]), (error, decay), reverse=True)
    return advantage * scale, advantage + rollout.value


def compute_loss(params, obs, action, log_prob, advantage, target, config):
    log_probs, value = apply_network(params, obs)
    ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0] - log_prob)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    actor_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    critic_loss = 0.5 * ((value - target) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return actor_loss + critic_loss - config.entropy_coef * entropy


def update_by_adam(state, gradient, config):
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1, config.max_grad_norm / norm), gradient)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean_gradient, gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state.mean_square, gradient)
    n = state.updates + 1

    def descend(p, m, s):
        return p - config.learning_rate * (m / (1 - 0.9**n)) / (jnp.sqrt(s / (1 - 0.999**n)) + 1e-8)

    params = jax.tree.map(descend, state.params, mean, square)
    return state._replace(params=params, mean_gradient=mean, mean_square=square, updates=n)


def learn(state, rollout, orders, config):
    """Learn from a rollout, in the order of rows [minibatches, batch_size] of all epochs, one after another."""
    merge = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    state = state._replace(reward_statistics=update_statistics(state.reward_statistics, jnp.abs(merge(rollout.reward))))
    advantage, target = estimate_advantages(state, rollout, config)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    obs = normalize(state.obs_statistics, rollout.obs)
    rows = jax.tree.map(merge, (obs, rollout.action, rollout.log_prob, advantage, target))

    def update_on_minibatch(state, order):
        minibatch = jax.tree.map(lambda x: x[order], rows)
        return update_by_adam(state, jax.grad(compute_loss)(state.params, *minibatch, config), config), None

    state, _ = jax.lax.scan(update_on_minibatch, state, orders)
    return state._replace(obs_statistics=update_statistics(state.obs_statistics, merge(rollout.obs)))


def step(env, state, key, config):
    """An iteration: a rollout, then num_epochs epochs of minibatches."""
    key_collect, key_learn = jax.random.split(key)
    state, rollout = collect(env, state, key_collect, config)
    shuffle = lambda key: jax.random.permutation(key, config.num_envs * config.num_steps)  # noqa: E731
    orders = jax.vmap(shuffle)(jax.random.split(key_learn, config.num_epochs)).reshape(-1, config.batch_size)
    return learn(state, rollout, orders, config)


def init(env, params, key, config):
    """Return the state before the first iteration of an agent with these parameters."""
    env_state, obs = jax.vmap(env.reset, (0, None))(jax.random.split(key, config.num_envs), env.default_params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    nothing = jnp.float32(0)
    of_obs = Statistics(nothing, jnp.zeros_like(obs[0]), jnp.zeros_like(obs[0]))
    return State(params, zeros, zeros, jnp.int32(0), of_obs, Statistics(*(nothing,) * 3), env_state, obs)
