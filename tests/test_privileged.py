"""Privileged states: no policy sees them, every value function does, on a tiny environment."""

import json
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import (
    A2C,
    CEMRL,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    Evolution,
    MLPPolicy,
    OffPolicy,
    OnPolicy,
    numpy_policy,
    spaces,
    tree,
)
from evorl.agents import BC, DiscreteSAC
from evorl.agents.puffer import Puffer
from evorl.ec import CEM, OpenES
from evorl.envs import check_env
from evorl.envs.observations import FlattenObservation, TimeAwareObservation
from evorl.envs.suites.gymnasium import to_gymnasium_space
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.networks import CNN, GRU
from evorl.networks.mlp import MLP
from evorl.networks.network import Network
from evorl.spaces import Box, Discrete, ObsWithActionMask, PrivilegedObs
from evorl.training.export import export_policy
from evorl.training.exported_policy import ExportedPolicy
from evorl.training.policy import Policy
from evorl.types import TimeStep

SPACE = PrivilegedObs(Box(-2.0, 2.0, (2,)), Box(-10.0, 10.0, (3,)))
KEY = jax.random.key(0)


@struct.dataclass
class TargetState:
    target: Float[Array, " 2"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Target:
    """Three steps whose reward is largest at an action that only the privileged state tells; its scale is the params.

    The scale changes the privileged state and nothing else.
    """

    choices: int = 0

    default_params = 1.0
    fresh_reset = True
    max_episode_steps = 3
    observation_space = SPACE

    @property
    def action_space(self):
        return Discrete(self.choices) if self.choices else Box(-1.0, 1.0, (1,))

    def observe(self, state, scale):
        seen = jnp.concatenate([state.target, jnp.float32(state.steps)[None]])
        return {"obs": state.target + 0.1 * state.steps, "state": scale * seen}

    def reset(self, key, params):
        state = TargetState(jax.random.uniform(key, (2,), minval=-1), jnp.int32(0))
        return state, self.observe(state, params)

    def step(self, key, env_state, action, params):
        del key
        number = jnp.float32(action) / max(self.choices - 1, 1) if self.choices else action[0]
        state = TargetState(env_state.target, env_state.steps + 1)
        reward = -((number - state.target[0]) ** 2)
        ended = state.steps >= self.max_episode_steps
        return state, TimeStep(self.observe(state, params), reward, jnp.bool_(False), ended)


ENV, CHOICES = Target(), Target(3)
SMALL = {"num_envs": 4, "num_steps": 3, "num_updates": 2, "batch_size": 4, "capacity": 64, "random_steps": 12}
OF_ROLLOUTS = {"num_envs": 4, "num_steps": 6, "batch_size": 12, "eval_episodes": 4}
AGENTS = {
    "ppo": PPO(hidden=(4,), activation="swish", state_dependent_std=True, value_hidden=(5,)),
    "recurrent": PPO(hidden=(4,), core=GRU(3)),
    "a2c": A2C(hidden=(4,)),
    "impala": IMPALA(hidden=(4,)),
    "puffer": Puffer(hidden=(4,)),
    "td3": TD3(hidden=(4,)),
    "ddpg": TD3(hidden=(4,), num_critics=1, policy_noise=0.0),
    "sac": SAC(hidden=(4,)),
    "discrete_sac": DiscreteSAC(hidden=(4,)),
    "dqn": DQN(hidden=(4,), epsilon=0.5),
    "bc": BC(hidden=(4,)),
    "policy": MLPPolicy(hidden=(4,)),
}
DISCRETE = ("discrete_sac", "dqn")


def make_workflow(name):
    agent, env = AGENTS.get(name), CHOICES if name in DISCRETE else ENV
    if name == "evolution":
        return Evolution(env, AGENTS["policy"], OpenES(4), 1, normalization="running", eval_episodes=4, scan_length=3)
    if name == "virtual batch":
        return Evolution(env, AGENTS["policy"], OpenES(4), 1, normalization="vbn", vbn_steps=6, eval_episodes=4)
    if name == "cemrl":
        return CEMRL(env, TD3(hidden=(4,)), CEM(4), capacity=64, batch_size=4, random_steps=12, eval_episodes=4)
    if name in ("td3", "ddpg", "sac", *DISCRETE):
        return OffPolicy(env, agent, policy_delay=1, eval_episodes=4, normalize_observations=name == "sac", **SMALL)
    return OnPolicy(env, agent, **OF_ROLLOUTS)


def bits(values):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(values)]


@pytest.fixture(params=AGENTS)
def agent(request):
    env = CHOICES if request.param in DISCRETE else ENV
    return replace(AGENTS[request.param], observation_space=SPACE, action_space=env.action_space)


def make_batch(agent, scale):
    """Return a batch of transitions whose privileged states are scaled."""
    obs = {"obs": jnp.array([[0.1, -0.4], [0.5, 0.2]]), "state": scale * jnp.array([[1.0, 2.0, -3.0], [0.5, 1.5, 1.0]])}
    return obs, tree.broadcast(agent.initial_memory(), 2)


def test_an_encoder_of_images_is_not_for_a_state_without_images():
    space = PrivilegedObs(Box(0, 255, (5, 5, 3), "uint8"), Box(-1.0, 1.0, (7,)))
    obs = space.sample(KEY)
    for privileged, inputs in ((False, 3 * 3 * 2), (True, 7)):
        network = Network(space, MLP((), 1), CNN(channels=(2,)), privileged=privileged)
        kernels = [x.shape for x in jax.tree.leaves(network.init(KEY, obs)["params"]) if x.ndim == 2]
        assert (inputs, 1) in kernels
        assert len(kernels) == (1 if privileged else 2)


def test_no_agent_acts_on_the_privileged_state(agent):
    params = agent.init(KEY).actor.params
    for act in (agent.act, agent.mode):
        one, other = (act(params, *make_batch(agent, scale), KEY)[0] for scale in (1.0, 5.0))
        assert bits(one) == bits(other)
    obs, memory = make_batch(agent, 1.0)
    seen = agent.mode(params, obs | {"obs": -obs["obs"]}, memory, KEY)[0]
    assert agent.action_space == Discrete(3) or bits(seen) != bits(one)


@pytest.mark.parametrize("name", ["ppo", "recurrent", "a2c", "impala", "puffer"])
def test_the_value_sees_the_privileged_state(name):
    agent = replace(AGENTS[name], observation_space=SPACE, action_space=ENV.action_space)
    params = agent.init(KEY).actor.params
    (obs, memory), (other, _) = make_batch(agent, 1.0), make_batch(agent, 5.0)
    assert (agent.apply(params, obs, memory)[1] != agent.apply(params, other, memory)[1]).all()
    blind = obs | {"obs": obs["obs"] + 1}
    assert bits(agent.apply(params, obs, memory)[1]) == bits(agent.apply(params, blind, memory)[1])


@pytest.mark.parametrize("name", ["td3", "ddpg", "sac", "discrete_sac"])
def test_critics_see_the_privileged_state(name):
    agent = replace(
        AGENTS[name], observation_space=SPACE, action_space=(CHOICES if name in DISCRETE else ENV).action_space
    )
    params = agent.init(KEY).critic.params
    action = () if name in DISCRETE else (jnp.array([[0.1], [0.2]]),)
    value = lambda obs: agent.critic.apply(params, obs, *action)  # noqa: E731
    obs, other = make_batch(agent, 1.0)[0], make_batch(agent, 5.0)[0]
    assert (np.asarray(value(obs)) != np.asarray(value(other))).all()
    assert bits(value(obs)) == bits(value(obs | {"obs": obs["obs"] + 1}))


def test_a_critic_is_that_of_the_state_alone():
    """A TD3 whose observation is the privileged state has the same critic, by hand."""
    agent = replace(AGENTS["td3"], observation_space=SPACE, action_space=ENV.action_space)
    params = agent.init(KEY).critic.params["params"]["MLP_0"]
    obs, action = make_batch(agent, 1.0)[0], jnp.array([[0.1], [0.2]])
    x = np.concatenate([obs["state"], action], -1)
    hidden = np.maximum(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0)
    wanted = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    found = agent.critic.apply(agent.init(KEY).critic.params, obs, action)
    np.testing.assert_allclose(found[..., :1], wanted, rtol=1e-6)


@pytest.mark.program
@pytest.mark.parametrize(
    "name", [*(name for name in AGENTS if name not in ("bc", "policy")), "evolution", "virtual batch", "cemrl"]
)
def test_rollouts_and_evaluations_do_not_depend_on_the_privileged_state(name):
    workflow = make_workflow(name)
    state, _ = jax.jit(workflow.step)(jax.jit(workflow.init)(KEY), KEY)

    @jax.jit
    def play(scale):
        scaled = replace(state, env_params=scale)
        after, played = workflow.rollout(scaled, workflow.plan(scaled, KEY)[0], KEY)
        rows = played.stored if played.stored is not None else after.replay.sample(KEY, (32,)).rows
        return rows, workflow.evaluate(scaled, KEY)

    if name in ("evolution", "virtual batch"):
        evaluate = jax.jit(lambda scale: workflow.evaluate(replace(state, env_params=scale), KEY))
        assert bits(evaluate(1.0)) == bits(evaluate(7.0))
        return
    (rows, one), (others, other) = play(1.0), play(7.0)
    assert bits(rows.action) == bits(others.action)
    assert bits(rows.obs["obs"]) == bits(others.obs["obs"])
    assert bits(rows.obs["state"]) != bits(others.obs["state"])  # the replay buffer or the rollout holds both
    assert bits(one) == bits(other)


@pytest.mark.program
@pytest.mark.parametrize("name", ["ppo", "recurrent", "td3", "sac", "evolution"])
def test_loaded_and_exported_policies_do_not_need_the_privileged_state(name, tmp_path):
    workflow = make_workflow(name)
    state, _ = jax.jit(workflow.step)(jax.jit(workflow.init)(KEY), KEY)
    policy = Policy(workflow, state)
    obs = {"obs": np.float32([[0.1, -0.4], [0.5, 0.2]]), "state": np.ones((2, 3), np.float32)}
    given = (policy.initial_memory(2),) if policy.is_recurrent else ()
    wanted = bits(policy(obs, *given))
    assert (
        wanted == bits(policy(obs | {"state": 5 * obs["state"]}, *given)) == bits(policy({"obs": obs["obs"]}, *given))
    )
    play = jax.vmap(lambda obs, memory: policy.as_policy_fn()(obs, memory, KEY)[0])
    assert bits(play(obs, policy.initial_memory(2))) == bits(
        play(obs | {"state": -obs["state"]}, policy.initial_memory(2))
    )
    export_policy(policy, tmp_path / "policy.npz")
    exported = ExportedPolicy(tmp_path / "policy.npz", env=ENV)
    given = (exported.initial_memory(2),) if policy.is_recurrent else ()
    again = bits(exported(obs, *given))
    assert (
        again == bits(exported({"obs": obs["obs"]}, *given)) == bits(exported(obs | {"state": -obs["state"]}, *given))
    )
    in_numpy = numpy_policy.load(tmp_path / "policy.npz")
    one = {name: x[0] for name, x in obs.items()}
    assert bits(in_numpy(one)) == bits(in_numpy({"obs": one["obs"]}))
    program = json.loads(str(np.load(tmp_path / "policy.npz")["program"]))
    assert [leaf["path"] for leaf in program["obs"]] == [["obs"]]
    given = (policy.initial_memory(2),) if policy.is_recurrent else ()
    export_policy(policy, tmp_path / "policy.jaxexport")
    loaded = jax.export.deserialize(bytearray((tmp_path / "policy.jaxexport").read_bytes()))
    np.testing.assert_allclose(
        jax.tree.leaves(loaded.call({"obs": obs["obs"]}, *given))[0], jax.tree.leaves(policy(obs, *given))[0], rtol=1e-5
    )


def test_the_environment_of_these_tests_keeps_the_protocol():
    check_env(ENV)


@pytest.mark.parametrize(
    ("wrap", "seen"),
    [
        (FlattenObservation, Box((-2.0, -2.0), (2.0, 2.0), (2,))),
        (partial(FrameStack, count=2), Box(-2.0, 2.0, (2, 2))),
        (TimeAwareObservation, spaces.Dict({"obs": SPACE.space, "time": Box(0.0, 1.0, (1,))})),
    ],
)
def test_wrappers_of_observations_leave_the_privileged_state_apart(wrap, seen):
    env = wrap(ENV)
    assert env.observation_space == PrivilegedObs(seen, SPACE.state)
    state, obs = env.reset(KEY, 1.0)
    after = env.step(KEY, state, jnp.zeros(1), 1.0)[1].obs
    for got in (obs, after):
        assert jax.tree.map(jnp.shape, got) == jax.tree.map(
            lambda x: x.shape, spaces.to_shape_structs(env.observation_space)
        )
    np.testing.assert_array_equal(obs["state"], ENV.reset(KEY, 1.0)[1]["state"])


def test_parts_of_observations():
    masked = ObsWithActionMask(SPACE, (3,))
    obs = {"obs": {"obs": jnp.zeros(2), "state": jnp.ones(3)}, "legal": jnp.ones(3, bool)}
    assert spaces.get_visible_space(masked) == SPACE.space
    assert spaces.get_value_space(masked) == SPACE.state
    assert spaces.get_visible_obs(masked, obs).shape == (2,)
    assert spaces.get_value_obs(masked, obs).shape == (3,)
    assert spaces.with_visible_space(masked, Box(0, 1, (1,))) == ObsWithActionMask(
        PrivilegedObs(Box(0, 1, (1,)), SPACE.state), (3,)
    )
    changed = spaces.with_visible_obs(masked, obs, jnp.zeros(1))
    assert changed["obs"]["obs"].shape == (1,)
    assert changed["obs"]["state"] is obs["obs"]["state"]
    without = spaces.get_policy_obs(masked, obs)
    assert set(without["obs"]) == {"obs"}
    assert spaces.get_policy_space(masked) == ObsWithActionMask(spaces.Dict({"obs": SPACE.space}), (3,))
    np.testing.assert_array_equal(spaces.fill_privileged_state(masked, without)["obs"]["state"], np.zeros(3))
    assert to_gymnasium_space(SPACE)["state"].shape == (3,)
    network = Network(masked, MLP((), 1), privileged=True)
    assert network.init_params(KEY)["params"]["Dense_0"]["kernel"].shape == (3, 1)


def test_refused_spaces_and_options():
    with pytest.raises(OptionError, match=r"must have no parts; use ObsWithActionMask\(PrivilegedObs"):
        PrivilegedObs(ObsWithActionMask(Box(0, 1, (1,)), (2,)), Box(0, 1, (1,)))
    with pytest.raises(OptionError, match="shared_trunk=true: must be false if the value function sees a privileged"):
        PPO(shared_trunk=True, observation_space=SPACE, action_space=ENV.action_space)
    policy = Policy(make_workflow("ppo"), make_workflow("ppo").init(KEY))
    with pytest.raises(OptionError, match="obs=a dict of nothing: must be a dict of obs"):
        policy({"state": np.zeros(3)})
