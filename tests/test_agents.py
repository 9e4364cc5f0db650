"""Targets and losses of the agents against NumPy, which computes them from the networks' outputs term by term."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from evorl.agents import (
    A2C,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    DiscreteSAC,
    MLPPolicy,
    TrainState,
)
from evorl.agents.losses import min_over_critics
from evorl.agents.random import Random
from evorl.agents.sac_common import ENTROPY_UNIT
from evorl.errors import OptionError
from evorl.networks.network import FLAT
from evorl.parts import bind, resolve_numbers
from evorl.schedules import Linear
from evorl.spaces import Box, Discrete, MultiDiscrete, PrivilegedObs
from evorl.types import Batch, Transition

OBS, REAL, CHOICE = Box(-1.0, 1.0, (3,)), Box((-2.0, 0.0), (2.0, 1.0), (2,)), Discrete(4)
ROWS = 64


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


@pytest.fixture
def rows(rng):
    """A batch, and what the network then says of it: log_prob, value, entropy."""
    batch = Batch(None, None, *rng.normal(size=(4, ROWS)).astype(np.float32))
    return jax.tree.map(jnp.asarray, (batch, *rng.normal(size=(3, ROWS)).astype(np.float32)))


def test_ppo_loss(rows):
    batch, log_prob, value, entropy = rows
    agent = PPO(clip=0.3, value_clip=0.4, policy_coef=1.5, value_coef=0.7, entropy_coef=0.02)
    loss, metrics = agent.loss_of_rows(batch, log_prob, value, entropy)
    terms = []
    for old, a, v0, target, new, v, h in zip(
        *map(np.asarray, (batch.log_prob, batch.advantage, batch.value, batch.target, log_prob, value, entropy)),
        strict=True,
    ):
        ratio = np.exp(new - old)
        surrogate = min(ratio * a, min(max(ratio, 0.7), 1.3) * a)
        near = v0 + min(max(v - v0, -0.4), 0.4)
        terms.append(-1.5 * surrogate + 0.7 * 0.5 * max((v - target) ** 2, (near - target) ** 2) - 0.02 * h)
    close(loss, np.mean(terms))
    ratio = np.exp(np.asarray(log_prob - batch.log_prob))
    close(metrics["clipped"], np.mean((ratio < 0.7) | (ratio > 1.3)))
    close(metrics["kl"], np.mean(ratio - 1 - np.log(ratio)))


@pytest.mark.parametrize("cls", [A2C, IMPALA])
def test_policy_gradient_loss(rows, cls):
    batch, log_prob, value, entropy = rows
    agent = cls(policy_coef=1.5, value_coef=0.7, entropy_coef=0.02)
    loss, _ = agent.loss_of_rows(batch, log_prob, value, entropy)
    squares = (np.asarray(value) - np.asarray(batch.target)) ** 2
    expected = -1.5 * np.asarray(log_prob) * np.asarray(batch.advantage) + 0.35 * squares - 0.02 * np.asarray(entropy)
    close(loss, expected.mean())


def following(t):
    """Transitions of which each begins where the one before it led, unless that ended."""
    led = jnp.where(t.is_done[:-1, :, None], t.next_obs[:-1], t.obs[1:])
    return t.replace(next_obs=jnp.concatenate([led, t.next_obs[-1:]]))


def transitions(rng, num_steps, num_envs, action, sample):
    shape = (num_steps, num_envs)
    obs, next_obs = rng.normal(size=(2, *shape, 3)).astype(np.float32)
    terminated = rng.random(shape) < 0.2
    truncated = ~terminated & (rng.random(shape) < 0.2)
    reward = rng.normal(size=shape).astype(np.float32)
    parts = (obs, action, reward, next_obs, terminated, truncated, {"sample": sample})
    return jax.tree.map(jnp.asarray, Transition(*parts))


@pytest.mark.program
@pytest.mark.parametrize("space", [REAL, CHOICE, MultiDiscrete((2, 3))])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_batches_of_a_rollout_bootstrap_each_env_alone(rng, space, shared_trunk):
    agent = PPO(hidden=(8, 8), shared_trunk=shared_trunk, observation_space=OBS, action_space=space)
    agent = replace(agent, discount=0.8, gae_lambda=0.6, reward_scale=0.5)
    params = agent.init(jax.random.key(0)).actor.params
    keys = jax.random.split(jax.random.key(1), (5, 2))
    obs = jnp.asarray(rng.normal(size=(5, 2, 3)), jnp.float32)
    act = lambda obs, key: agent.act(params, obs, None, key)  # noqa: E731
    action, _, extras = jax.vmap(jax.vmap(act))(obs, keys)
    t = following(transitions(rng, 5, 2, action, extras["sample"]).replace(obs=obs, extras=extras))
    batch = agent.build_batch(params, t, acted_by_current_params=True)
    value, after = (np.asarray(agent.apply(params, x)[1]) for x in (t.obs, t.next_obs))
    for index in range(2):
        advantage = 0.0
        for step in reversed(range(5)):
            terminated, ended = bool(t.terminated[step, index]), bool(t.is_done[step, index])
            error = (
                0.5 * float(t.reward[step, index]) + 0.8 * (not terminated) * after[step, index] - value[step, index]
            )
            advantage = error + 0.8 * 0.6 * (not ended) * advantage
            close(batch.advantage[step, index], advantage)
            close(batch.target[step, index], advantage + value[step, index])
    log_prob = agent.apply(params, obs)[0].log_prob(extras["sample"])
    close(batch.log_prob, log_prob)


def test_impala_corrects_for_the_policy_that_acted(rng):
    agent = IMPALA(hidden=(8,), observation_space=OBS, action_space=CHOICE, discount=0.8)
    params, behaviour = (jax.jit(agent.init)(jax.random.key(i)).actor.params for i in range(2))
    behaviour = jax.tree.map(lambda x: 300 * x, behaviour)  # far from uniform
    sample = jnp.asarray(rng.integers(0, 4, (5, 2)), jnp.int32)
    t = transitions(rng, 5, 2, sample, sample)
    acting = jax.jit(jax.vmap(jax.vmap(lambda obs: agent.apply_network("step", behaviour, (), obs)[1])))
    t = following(t.replace(extras=t.extras | {"outputs": acting(t.obs)}))
    batch = jax.jit(agent.build_batch, static_argnames="acted_by_current_params")(
        params, t, acted_by_current_params=False
    )
    ratio = jnp.exp(agent.apply(params, t.obs)[0].log_prob(sample) - agent.apply(behaviour, t.obs)[0].log_prob(sample))
    assert float(ratio.max()) > 1.5
    value, after = (np.asarray(agent.apply(params, x)[1]) for x in (t.obs, t.next_obs))
    rho = np.minimum(np.asarray(ratio), 1)
    step = rho[-1] * (np.asarray(t.reward[-1]) + 0.8 * ~np.asarray(t.terminated[-1]) * after[-1] - value[-1])
    close(batch.target[-1], value[-1] + step)
    close(batch.advantage[-1], step)


def numpy_mlp(params, x, layers=3):
    for i in range(layers):
        x = x @ np.asarray(params[f"Dense_{i}"]["kernel"]) + np.asarray(params[f"Dense_{i}"]["bias"])
        x = np.maximum(x, 0) if i < layers - 1 else x
    return x


@pytest.fixture
def sac(rng):
    agent = SAC(hidden=(8, 8), observation_space=OBS, action_space=REAL, discount=0.8, temperature=0.3)
    state, other = (jax.jit(agent.init)(jax.random.key(i)) for i in range(2))
    state = state.replace(critic=state.critic.replace(target_params=other.critic.params))
    action = np.asarray(jax.vmap(REAL.sample)(jax.random.split(jax.random.key(2), ROWS)))
    batch = jax.tree.map(lambda x: x[:, 0], transitions(rng, ROWS, 1, action[:, None], action[:, None]))
    return agent, state, batch


def numpy_sac_action(agent, state, obs, key):
    """Action and log-density of it in half ranges, by SciPy and the change of variables."""
    numbers = numpy_mlp(state.actor.params["params"], np.asarray(obs))
    mean, std = numbers[:, :2], np.exp(np.clip(numbers[:, 2:], -5, 2))
    x = mean + std * np.asarray(jax.random.normal(key, mean.shape))
    log_prob = (stats.norm(mean, std).logpdf(x) - np.log1p(-(np.tanh(x) ** 2))).sum(-1)
    return np.array([0, 0.5]) + np.array([2, 0.5]) * np.tanh(x), log_prob


def numpy_critics(params, obs, action):
    x = np.concatenate([np.asarray(obs), np.asarray(action)], -1)
    return np.stack([numpy_mlp(params["params"][f"MLP_{i}"], x)[:, 0] for i in range(2)], -1)


def test_sac_target_and_losses(sac):
    agent, state, batch = sac
    key = jax.random.key(5)
    action, log_prob = numpy_sac_action(agent, state, batch.next_obs, key)
    value = numpy_critics(state.critic.target_params, batch.next_obs, action).min(-1) - 0.3 * log_prob
    target = np.asarray(batch.reward) + 0.8 * ~np.asarray(batch.terminated) * value
    np.testing.assert_allclose(jax.jit(agent.critic_target)(state, batch, key), target, rtol=1e-4, atol=1e-4)
    values = numpy_critics(state.critic.params, batch.obs, batch.action)
    loss, _ = jax.jit(agent.critic_loss)(state.critic.params, state, batch, key)
    np.testing.assert_allclose(loss, ((values - target[:, None]) ** 2).mean(0).sum(), rtol=1e-4)
    action, log_prob = numpy_sac_action(agent, state, batch.obs, key)
    expected = (0.3 * log_prob - numpy_critics(state.critic.params, batch.obs, action).min(-1)).mean()
    loss, metrics = jax.jit(agent.actor_loss)(state.actor.params, state, batch, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -log_prob.mean(), rtol=1e-4)


@pytest.mark.parametrize("learned", [True, False])
def test_the_temperature_falls_where_there_is_more_entropy_than_wanted(learned):
    agent = SAC(hidden=(8,), learned_temperature=learned, observation_space=OBS, action_space=REAL, temperature=0.3)
    for entropy, change in ((5.0, -1), (-5.0, 1)):
        state = jax.jit(agent.init)(jax.random.key(0))
        loss = lambda params, entropy=entropy: (jnp.float32(0), {"entropy": jnp.float32(entropy), ENTROPY_UNIT: 2.0})  # noqa: E731
        after, _ = jax.jit(lambda state, loss=loss: agent.update_actor(state, loss))(state)
        moved = float(jnp.log(agent.current_temperature(after)) - jnp.log(0.3))
        assert moved == pytest.approx(change * agent.temperature_lr if learned else 0, abs=1e-6)


def test_discrete_sac_takes_means_over_all_choices(rng):
    agent = DiscreteSAC(hidden=(8, 8), observation_space=OBS, action_space=CHOICE, discount=0.8, temperature=0.3)
    state, other = (jax.jit(agent.init)(jax.random.key(i)) for i in range(2))
    state = state.replace(critic=state.critic.replace(target_params=other.critic.params))
    sample = rng.integers(0, 4, (ROWS, 1)).astype(np.int32)
    batch = jax.tree.map(lambda x: x[:, 0], transitions(rng, ROWS, 1, sample, sample))

    def soft(params, obs):
        logits = numpy_mlp(state.actor.params["params"], np.asarray(obs))
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        values = np.stack([numpy_mlp(params["params"][f"MLP_{i}"], np.asarray(obs)) for i in range(2)]).min(0)
        return (np.exp(log_probs) * (values - 0.3 * log_probs)).sum(-1)

    target = np.asarray(batch.reward) + 0.8 * ~np.asarray(batch.terminated) * soft(
        state.critic.target_params, batch.next_obs
    )
    close(agent.critic_target(state, batch), target)
    loss, _ = agent.actor_loss(state.actor.params, state, batch, jax.random.key(0))
    close(loss, -soft(state.critic.params, batch.obs).mean())


@pytest.mark.parametrize("double", [True, False])
def test_dqn_target_and_loss(rng, double):
    agent = DQN(hidden=(8, 8), double=double, observation_space=OBS, action_space=CHOICE, discount=0.8, huber_delta=0.5)
    state, other = (jax.jit(agent.init)(jax.random.key(i)) for i in range(2))
    state = state.replace(actor=state.actor.replace(target_params=other.actor.params))
    sample = rng.integers(0, 4, (ROWS, 1)).astype(np.int32)
    batch = jax.tree.map(lambda x: x[:, 0], transitions(rng, ROWS, 1, sample, sample))
    value = lambda params, obs: numpy_mlp(params["params"]["MLP_0"], np.asarray(obs))  # noqa: E731
    after = value(state.actor.target_params, batch.next_obs)
    preferred = (value(state.actor.params, batch.next_obs) if double else after).argmax(-1)
    bootstrap = after[np.arange(ROWS), preferred]
    target = np.asarray(batch.reward) + 0.8 * ~np.asarray(batch.terminated) * bootstrap
    close(agent.critic_target(state, batch, agent.values(state.actor.params, batch)[1]), target)
    error = np.abs(value(state.actor.params, batch.obs)[np.arange(ROWS), sample[:, 0]] - target)
    huber = np.where(error < 0.5, 0.5 * error**2, 0.5 * (error - 0.25))
    loss, _ = agent.critic_loss(state.actor.params, state, batch, jax.random.key(0))
    close(loss, huber.mean())


def test_dueling_advantages_have_mean_zero():
    agent = DQN(hidden=(8, 8), dueling=True, observation_space=OBS, action_space=CHOICE)
    params = agent.init(jax.random.key(0)).actor.params
    shifted = jax.tree_util.tree_map_with_path(
        lambda path, x: x + 7 if "advantage" in str(path) and "Dense_1" in str(path) and "bias" in str(path) else x,
        params,
    )
    obs = jnp.ones((5, 3))
    close(agent.network.apply(params, obs), agent.network.apply(shifted, obs))


def test_exploration_falls_over_its_steps_and_learning_rates_to_zero():
    agent = DQN(epsilon=Linear(1.0, 0.2, over=100.0))
    bound = lambda agent, n: bind(agent, resolve_numbers(agent), jnp.float32(n))  # noqa: E731
    close([bound(agent, n).epsilon for n in (0, 50, 100, 500)], [1, 0.6, 0.2, 0.2])
    assert bound(DQN(), 25_000).epsilon == pytest.approx(0.525)  # half way from 1 to 0.05
    for cls in (PPO, A2C, IMPALA, DQN):
        annealed = cls(learning_rate=Linear(0.1, 0, over=100.0))
        close([bound(annealed, n).learning_rate for n in (0, 75, 200)], [0.1, 0.025, 0])


def test_epsilon_is_the_share_of_random_actions():
    agent = DQN(hidden=(8,), observation_space=OBS, action_space=CHOICE)
    agent = replace(agent, epsilon=0.4)
    params, obs = agent.init(jax.random.key(0)).actor.params, jnp.ones(3)
    greedy = agent.mode(params, obs, None, jax.random.key(0))[0]
    acted = jax.vmap(lambda key: agent.act(params, obs, None, key)[0])(jax.random.split(jax.random.key(1), 4000))
    assert float((acted != greedy).mean()) == pytest.approx(0.4 * 3 / 4, abs=0.03)


def test_without_hidden_layers_a_policy_is_linear():
    agent = A2C(hidden=(), observation_space=OBS, action_space=CHOICE)
    params = agent.init(jax.random.key(0)).actor.params
    assert sum(x.size for x in jax.tree.leaves(params)) == 3 * 4 + 4 + 3 + 1
    numbers = lambda x: agent.apply(params, x)[0].logits  # noqa: E731
    x, y = jnp.array([1.0, 0.0, 2.0]), jnp.array([0.0, -1.0, 0.5])
    close(numbers(x + y) + numbers(jnp.zeros(3)), numbers(x) + numbers(y))


def test_a_random_agent_is_random_where_others_are_greedy():
    agent = Random(observation_space=OBS, action_space=CHOICE)
    acted = [agent.mode(None, jnp.zeros(3), None, jax.random.key(i))[0] for i in range(400)]
    assert stats.chisquare(np.bincount(acted, minlength=4)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("agent", "space"),
    [
        (SAC, CHOICE),
        (DQN, REAL),
        (DQN, MultiDiscrete((2, 2))),
        (DiscreteSAC, REAL),
        (SAC, Box(0, 1, (2, 2))),
    ],
)
def test_agents_refuse_actions_that_they_cannot_take(agent, space):
    with pytest.raises(OptionError, match="action"):
        agent(observation_space=OBS, action_space=space)


@pytest.mark.parametrize("options", [{"hidden": (0,)}, {"activation": "rellu"}, {"distribution": "beta"}])
def test_networks_that_cannot_be_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        PPO(**options, observation_space=OBS, action_space=REAL)


def test_the_least_of_critics_gives_its_gradient_to_one():
    values = jnp.array([[1.0, 2.0, 0.5], [3.0, 3.0, 4.0], [-jnp.inf, 0.0, jnp.inf]])
    np.testing.assert_array_equal(min_over_critics(values), [0.5, 3.0, -np.inf])
    gradient = jax.grad(lambda values: min_over_critics(values).sum())(values)
    np.testing.assert_array_equal(gradient, [[0, 0, 1], [1, 0, 0], [1, 0, 0]])
    assert jnp.isnan(min_over_critics(jnp.array([0.0, jnp.nan])))


class Doubled(nn.Module):
    """Features of twice what is seen, through a layer."""

    @nn.compact
    def __call__(self, space, obs):
        return nn.Dense(5)(2 * obs)


ENCODED = {
    PPO: REAL,
    MLPPolicy: REAL,
    SAC: REAL,
    TD3: REAL,
    DQN: CHOICE,
    DiscreteSAC: CHOICE,
}


@pytest.mark.parametrize("cls", ENCODED)
def test_every_agent_sees_through_its_encoder(cls):
    """A network of 5 features behind it; scaled by 2 it gives what the same weights give of twice the observation."""
    spaces = {"observation_space": OBS, "action_space": ENCODED[cls]}
    agent = cls(hidden=(8,), encoder=Doubled(), **spaces)
    state = jax.jit(agent.init)(jax.random.key(0))
    layer = state.actor.params["params"]["encoder"]["Dense_0"]
    assert layer["kernel"].shape == (3, 5)
    plain = replace(agent, observation_space=Box(-9.0, 9.0, (5,)), encoder=FLAT)
    rest = {"params": {name: part for name, part in state.actor.params["params"].items() if name != "encoder"}}
    obs = jnp.array([0.3, -0.2, 0.9])
    seen = 2 * obs @ layer["kernel"] + layer["bias"]
    act = lambda agent, params, obs: agent.mode(params, obs, None, jax.random.key(0))[0]  # noqa: E731
    close(act(agent, state.actor.params, obs), act(plain, rest, seen))


LEARNING = [cls for cls in ENCODED if cls is not MLPPolicy]


@pytest.mark.parametrize("cls", LEARNING)
def test_an_optimizer_that_one_passes_is_the_one_that_steps(cls):
    """Of optax.sign_sgd without its rate: every number with a gradient moves by the learning rate."""
    spaces = {"observation_space": OBS, "action_space": ENCODED[cls]}
    agent = cls(hidden=(8,), optimizer=optax.scale_by_sign(), **spaces)
    state = jax.jit(agent.init)(jax.random.key(0))

    def square(params):
        return sum((x**2).sum() for x in jax.tree.leaves(params)), {"entropy": jnp.float32(0), ENTROPY_UNIT: 1}

    if cls in (PPO, DQN):
        before, after = state.actor, (agent.update if cls is PPO else agent.update_critic)(state, square)
        moved, rate = after[0].actor, agent.learning_rate
    else:
        before, moved, rate = state.actor, agent.update_actor(state, square)[0].actor, agent.actor_lr
        critic = agent.update_critic(state, square)[0].critic
        steps = jax.tree.map(lambda a, b: a - b, state.critic.params, critic.params)
        assert_signs(steps, state.critic.params, agent.critic_lr)
    assert_signs(jax.tree.map(lambda a, b: a - b, before.params, moved.params), before.params, rate)
    assert moved.reset_with_params(moved.params).optimizer is agent.optimizer


def assert_signs(steps, params, rate):
    for step, x in zip(jax.tree.leaves(steps), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(step, rate * np.sign(x), rtol=1e-2, atol=1e-8)


def test_an_optimizer_that_sees_shapes():
    """Adafactor keeps a number for each row and one for each column of a matrix."""
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=4)
    state = TrainState.create({"w": jnp.ones((8, 6))}, optimizer=factored)
    after, _ = state.apply_gradients(lambda params: ((params["w"] ** 2).sum(), {}), 0.1, jnp.inf)
    assert sorted([after.opt_state.v_row["w"].shape, after.opt_state.v_col["w"].shape]) == [(6,), (8,)]
    close(after.params["w"], 0.9)


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.sgd(0.1)])
def test_an_optimizer_with_a_rate_of_its_own_is_refused(optimizer):
    agent = DQN(hidden=(8,), optimizer=optimizer, observation_space=OBS, action_space=CHOICE)
    with pytest.raises(
        OptionError, match=r"optimizer=.*: must return the direction to subtract, without a learning rate"
    ):
        jax.eval_shape(agent.init, jax.random.key(0))


@pytest.mark.parametrize("privileged", [False, True])
def test_standard_deviations_that_depend_on_the_state_are_outputs_of_the_policy(privileged):
    box = Box(-1.0, 1.0, (2,))
    space = PrivilegedObs(Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (5,))) if privileged else Box(-1.0, 1.0, (3,))
    agent = PPO((4,), "swish", state_dependent_std=True, value_hidden=(7, 6), observation_space=space, action_space=box)
    params = agent.init(jax.random.key(0)).actor.params
    of_policy = params["policy"] if privileged else params
    assert "log_std" not in of_policy["params"]
    x = jnp.float32([[0.3, -0.2, 0.5], [0.1, 0.9, -0.4]])
    layers = of_policy["params"]["policy"]
    hidden = x @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"]
    hidden = hidden / (1 + np.exp(-hidden))
    raw = hidden @ layers["Dense_1"]["kernel"] + layers["Dense_1"]["bias"]
    obs = {"obs": x, "state": jnp.zeros((2, 5))} if privileged else x
    policy, value = agent.apply(params, obs)
    np.testing.assert_allclose(policy.normal.mean, raw[:, :2], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jnp.exp(policy.normal.log_std), np.log1p(np.exp(raw[:, 2:])) + 1e-3, rtol=1e-5)
    assert value.shape == (2,)
    of_value = params["value"]["params"] if privileged else params["params"]["value"]
    assert [layer["kernel"].shape[1] for layer in of_value.values()] == [7, 6, 1]


def test_hidden_layers_of_the_value_that_are_refused():
    with pytest.raises(OptionError, match=r"value_hidden=\[0\]: widths must be whole numbers, at least 1"):
        PPO(value_hidden=(0,))
    with pytest.raises(OptionError, match=r"value_hidden=\[8\]: must be null if .*shared_trunk"):
        PPO(value_hidden=(8,), shared_trunk=True)
