"""Learners of cooperation: their losses are NumPy's, their actions legal, and the two-step game tells them apart."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import hyperparameters, tree
from evorl.agents import DQN, MAAC, MADDPG, ValueDecomposition
from evorl.agents.maac import MAACHyperparams
from evorl.agents.maddpg import MADDPGHyperparams
from evorl.agents.team import member_spaces
from evorl.envs import check
from evorl.errors import OptionError
from evorl.networks.mixers import MonotonicMixer, SumMixer
from evorl.networks.recurrent import GRU
from evorl.replay import SequenceReplay
from evorl.spaces import Box, Dict, Discrete, Legal, Members
from evorl.types import Transition
from evorl.workflows import OffPolicy, Vmapped
from tests.gaming import Chase, TwoStep
from tests.test_contract import ENV

CHASE, REAL, TWO_STEP = Chase(), Chase(real=True), TwoStep()
SMALL = {"num_updates": 4, "batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 4, "chunk": 3}
ROWS, N, CHOICES = 6, 3, 4
MASKED = (
    Dict({"crew": Members(Legal(Box(-1.0, 1.0, (2,)), (CHOICES,)), N)}),
    Dict({"crew": Members(Discrete(CHOICES), N)}),
)


def decomposed(env, mixer, **options):
    agents = DQN(*member_spaces(env.observation_space, env.action_space), **{"hidden": (8,)} | options)
    return ValueDecomposition(env.observation_space, env.action_space, agents, mixer)


def off_policy(env, agent, **options):
    return OffPolicy(env, agent, num_envs=4, num_steps=4, **SMALL | options)


def after(workflow, steps=3):
    state = workflow.init(jax.random.key(0), workflow.hyperparams())
    step = jax.jit(workflow.step)
    for i in range(steps):
        state, metrics = step(state, jax.random.key(i))
    return state, metrics


def moved(params, seed):
    """Parameters of which none is 0, as biases are at first."""
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(structure, [x + 0.1 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])


def legal_masks(rng, shape):
    """Some with one legal choice alone."""
    legal = rng.random((*shape, CHOICES)) < 0.5
    legal[..., 0] = True
    legal[::2, 0] = np.arange(CHOICES) == 1
    return legal


def masked_batch(seed=0):
    """Rows of a game of one group, whose choices are not all legal."""
    rng = np.random.default_rng(seed)

    def observed():
        return {"crew": {"obs": rng.normal(size=(ROWS, N, 2)), "legal": legal_masks(rng, (ROWS, N))}}

    obs, following = observed(), observed()
    action = (rng.random((ROWS, N, CHOICES)) + obs["crew"]["legal"]).argmax(-1)
    reward, ended = rng.normal(size=(ROWS, N)), rng.random((2, ROWS)) < 0.4
    rows = Transition(obs, {"crew": action}, {"crew": reward}, following, ended[0], ended[1] & ~ended[0])
    return jax.tree.map(lambda x: jnp.asarray(x, {"f": "float32", "i": "int32", "b": "bool"}[x.dtype.kind]), rows)


def dense(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def mlp(params, x, activation=lambda x: np.maximum(x, 0)):
    layers = sorted(params, key=lambda name: int(name.split("_")[1]))
    for name in layers[:-1]:
        x = activation(dense(params[name], x))
    return dense(params[layers[-1]], x)


def of_all(x, choice):
    return np.take_along_axis(x, choice[..., None], -1)[..., 0]


def softmax(x, axis=-1):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def mixed(mixer, params, values, state):
    if isinstance(mixer, SumMixer):
        return values.sum(-1)
    made = {name: mlp(of, state) for name, of in params["params"].items()}
    hidden = np.einsum("bn,bnw->bw", values, np.abs(made["first"].reshape(len(state), N, -1))) + made["bias"]
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    return (hidden * np.abs(made["second"])).sum(-1) + made["value"][:, 0]


@pytest.mark.parametrize("mixer", [SumMixer(), MonotonicMixer(5, (3,))], ids=["vdn", "qmix"])
def test_what_all_earn_is_learned_by_what_all_are_worth(mixer):
    agents = DQN(MASKED[0].parts["crew"].space, Discrete(CHOICES), hidden=(7,))
    agent = ValueDecomposition(*MASKED, agents, mixer)
    h = replace(agent.hyperparams(), discount=0.9)
    state = agent.init(jax.random.key(0), h)
    params, target = moved(state.actor.params, 1), moved(state.actor.params, 2)
    state = replace(state, actor=replace(state.actor, target=target))
    batch = masked_batch()
    loss, metrics = agent.critic_loss(params, state, batch, jax.random.key(0), h)
    rows = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)

    def values(params, obs):
        ids = np.broadcast_to(np.eye(N), (ROWS, N, N))
        x = np.concatenate([ids, rows.obs["crew"]["obs"] if obs is rows.obs else obs["crew"]["obs"]], -1)
        return np.where(obs["crew"]["legal"] > 0, mlp(params["agent"]["params"]["MLP_0"], x), -np.inf)

    def joint(params, chosen, obs):
        return mixed(mixer, params["mixer"], chosen, obs["crew"]["obs"].reshape(ROWS, -1))

    best = values(params, rows.next_obs).argmax(-1)
    after = joint(target, of_all(values(target, rows.next_obs), best), rows.next_obs)
    goal = rows.reward["crew"].sum(-1) + 0.9 * (1 - rows.terminated) * after
    value = joint(params, of_all(values(params, rows.obs), np.asarray(batch.action["crew"])), rows.obs)
    np.testing.assert_allclose(loss, 0.5 * ((value - goal) ** 2).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error"], np.abs(value - goal), rtol=1e-3, atol=1e-4)
