"""Compare updates of TD3 and SAC on synthetic batches with the same updates written by hand on flax and optax."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array
from peers_timing import Case, Program
from updates_sizes import ACTIONS, BATCH, INTERVAL, OBS, UPDATES

from evorl import SAC, TD3, tree
from evorl.spaces import Box
from evorl.types import Transition

KEY = jax.random.key(0)
SPACES = Box(-float("inf"), float("inf"), (OBS,)), Box(-1.0, 1.0, (ACTIONS,))


def synthetic(*shape: int) -> Transition:
    """Return random batches, leaves [*shape, INTERVAL, BATCH, ...]."""
    shape = (*shape, INTERVAL, BATCH)
    obs, action, next_obs = (
        jax.random.normal(key, (*shape, size))
        for key, size in zip(jax.random.split(KEY, 3), (OBS, ACTIONS, OBS), strict=True)
    )
    never = jnp.zeros(shape, bool)
    return Transition(obs, jnp.tanh(action), obs.mean(-1), next_obs, never, never)


def learning(init: Callable[..., Any], block: Callable[..., Any], members: int) -> Program:
    """Return a program that runs blocks of INTERVAL updates, (state, (batches, keys)) -> state.

    More than one member is vmapped; a single one is not.
    """
    blocks = UPDATES // INTERVAL // members

    def learn(state: Any, batches: Transition, key: Array) -> Any:
        keys = jax.random.split(key, (blocks, INTERVAL))
        return jax.lax.scan(lambda state, keys: (block(state, (batches, keys)), None), state, keys)[0]

    if members == 1:
        return Program(learn, (jax.jit(init)(KEY), synthetic(), KEY), UPDATES)
    keys = jax.random.split(KEY, members)
    state = jax.jit(jax.vmap(init))(keys)
    return Program(jax.vmap(learn), (state, synthetic(members), keys), UPDATES)


def td3_block(members: int) -> Program:
    """Return a program of TD3 as in OffPolicy: two critic updates and one actor update, without a condition."""
    agent = TD3(observation_space=SPACES[0], action_space=SPACES[1])
    return learning(agent.init, off_policy_block(agent), members)


def off_policy_block(agent: Any) -> Callable[..., Any]:
    def critic_update(state: Any, batch_and_key: Any) -> tuple[Any, Any]:
        batch, key = batch_and_key
        return agent.update_critic(state, lambda p: agent.critic_loss(p, state, batch, key))

    def block(state: Any, batches_and_keys: Any) -> Any:
        state, _ = jax.lax.scan(critic_update, state, batches_and_keys)
        batch, key = tree.index(batches_and_keys, -1)
        state, _ = agent.update_actor(state, lambda p: agent.actor_loss(p, state, batch, key))
        return agent.update_targets(state)

    return block


def sac_block(members: int) -> Program:
    """Return the same program for SAC."""
    agent = SAC(observation_space=SPACES[0], action_space=SPACES[1])
    return learning(agent.init, off_policy_block(agent), members)


class Perceptron(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(self.features)(x)


class TwinCritic(nn.Module):
    @nn.compact
    def __call__(self, obs: Array, action: Array) -> Array:
        x = jnp.concatenate([obs, action], -1)
        return jnp.concatenate([Perceptron(1)(x), Perceptron(1)(x)], -1)


@struct.dataclass
class PlainTD3:
    """State of the hand-written TD3; each member counts its own updates, as is usual."""

    count: Any
    actor: Any
    critic: Any
    actor_target: Any
    critic_target: Any
    actor_adam: Any
    critic_adam: Any


ACTOR, CRITIC, ADAM = Perceptron(ACTIONS), TwinCritic(), optax.adam(3e-4)


def act(params: Any, obs: Array) -> Array:
    return jnp.tanh(jnp.asarray(ACTOR.apply(params, obs)))


def value(params: Any, obs: Array, action: Array) -> Array:
    return jnp.asarray(CRITIC.apply(params, obs, action))


def plain_init(key: Array) -> PlainTD3:
    obs = jnp.zeros(OBS)
    actor, critic = ACTOR.init(key, obs), CRITIC.init(key, obs, jnp.zeros(ACTIONS))
    return PlainTD3(jnp.int32(0), actor, critic, actor, critic, ADAM.init(actor), ADAM.init(critic))


def move_actor(state: PlainTD3, batch: Transition) -> PlainTD3:
    gradient = jax.grad(lambda p: -value(state.critic, batch.obs, act(p, batch.obs))[:, 0].mean())(state.actor)
    change, moments = ADAM.update(gradient, state.actor_adam)
    actor: Any = optax.apply_updates(state.actor, change)
    actor_target = optax.incremental_update(actor, state.actor_target, 0.005)
    critic_target = optax.incremental_update(state.critic, state.critic_target, 0.005)
    return replace(state, actor=actor, actor_adam=moments, actor_target=actor_target, critic_target=critic_target)


def move_critic(state: Any, batch: Any, target: Array) -> Any:
    """Update the critic once, and increment the update count."""

    def loss(params: Any) -> Array:
        return ((value(params, batch.obs, batch.action) - target[:, None]) ** 2).sum(-1).mean()

    change, moments = ADAM.update(jax.grad(loss)(state.critic), state.critic_adam)
    critic = optax.apply_updates(state.critic, change)
    return replace(state, count=state.count + 1, critic=critic, critic_adam=moments)


def plain_update(state: PlainTD3, batch_and_key: Any) -> tuple[PlainTD3, None]:
    batch, key = batch_and_key
    noise = jnp.clip(0.2 * jax.random.normal(key, batch.action.shape), -0.5, 0.5)
    next_action = jnp.clip(act(state.actor_target, batch.next_obs) + noise, -1.0, 1.0)
    next_value = value(state.critic_target, batch.next_obs, next_action).min(-1)
    target = batch.reward + 0.99 * ~batch.terminated * next_value
    state = move_critic(state, batch, target)
    return jax.lax.cond(state.count % INTERVAL == 0, move_actor, lambda state, _: state, state, batch), None


def plain_td3(members: int) -> Program:
    """Return the same updates written by hand, with lax.cond for the delay of the actor."""
    return learning(plain_init, lambda state, inputs: jax.lax.scan(plain_update, state, inputs)[0], members)


GAUSSIAN = Perceptron(2 * ACTIONS)


@struct.dataclass
class PlainSAC:
    count: Any
    actor: Any
    critic: Any
    critic_target: Any
    log_temperature: Any
    actor_adam: Any
    critic_adam: Any
    temperature_adam: Any


def plain_sac_init(key: Array) -> PlainSAC:
    obs = jnp.zeros(OBS)
    actor, critic = GAUSSIAN.init(key, obs), CRITIC.init(key, obs, jnp.zeros(ACTIONS))
    nothing = jnp.float32(0)
    moments = ADAM.init(actor), ADAM.init(critic), ADAM.init(nothing)
    return PlainSAC(jnp.int32(0), actor, critic, critic, nothing, *moments)


def draw(params: Any, obs: Array, key: Array) -> tuple[Array, Array]:
    """Sample an action for every row; return it with the logarithm of its density."""
    mean, log_std = jnp.split(jnp.asarray(GAUSSIAN.apply(params, obs)), 2, -1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(key, mean.shape)
    x = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi) - 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))
    return jnp.tanh(x), log_prob.sum(-1)


def move_policy(state: PlainSAC, batch: Transition, key: Array) -> PlainSAC:
    def loss(params: Any) -> tuple[Array, Array]:
        action, log_prob = draw(params, batch.obs, key)
        q = value(state.critic, batch.obs, action).min(-1)
        return (jnp.exp(state.log_temperature) * log_prob - q).mean(), log_prob.mean()

    gradient, log_prob = jax.grad(loss, has_aux=True)(state.actor)
    change, actor_adam = ADAM.update(gradient, state.actor_adam)
    actor: Any = optax.apply_updates(state.actor, change)
    change, temperature_adam = ADAM.update(ACTIONS - log_prob, state.temperature_adam)
    log_temperature: Any = optax.apply_updates(state.log_temperature, change)
    critic_target = optax.incremental_update(state.critic, state.critic_target, 0.005)
    return replace(
        state,
        actor=actor,
        actor_adam=actor_adam,
        log_temperature=log_temperature,
        temperature_adam=temperature_adam,
        critic_target=critic_target,
    )


def plain_sac_update(state: PlainSAC, batch_and_key: Any) -> tuple[PlainSAC, None]:
    batch, key = batch_and_key
    next_action, log_prob = draw(state.actor, batch.next_obs, key)
    next_value = value(state.critic_target, batch.next_obs, next_action).min(-1)
    next_value -= jnp.exp(state.log_temperature) * log_prob
    target = batch.reward + 0.99 * ~batch.terminated * next_value
    state = move_critic(state, batch, target)
    wait = lambda state, batch, key: state  # noqa: E731
    return jax.lax.cond(state.count % INTERVAL == 0, move_policy, wait, state, batch, key), None


def plain_sac(members: int) -> Program:
    return learning(plain_sac_init, lambda state, inputs: jax.lax.scan(plain_sac_update, state, inputs)[0], members)


def updates() -> Iterator[Case]:
    for members in (1, 8, 32):
        yield f"TD3, members: {members}", {"evorl": td3_block(members), "lax.cond": plain_td3(members)}
    for members in (1, 32):
        yield f"SAC, members: {members}", {"evorl": sac_block(members), "lax.cond": plain_sac(members)}
