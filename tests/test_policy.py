"""What evorl.load gives: observations from anywhere, actions as NumPy, one compilation for each size of a batch."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import PPO
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU
from evorl.spaces import Box, Dict, Discrete, MultiDiscrete
from evorl.training.policy import Policy
from evorl.workflows import OnPolicy
from tests.counting import Counting

PARTS = Dict({"seen": Box(-1.0, 1.0, (2,)), "place": MultiDiscrete((4, 5)), "inner": Dict({"told": Discrete(3)})})
VALUE = {"seen": [0.5, -1.0], "place": (1, 2), "inner": {"told": 2}}


class Sums:
    """A workflow whose action is the sum of all that is seen, plus a number drawn where it explores."""

    def init(self, *arguments):
        raise NotImplementedError

    step = evaluate = inherit = init

    def __init__(self, space):
        self.env = SimpleNamespace(observation_space=space)
        self.agent = SimpleNamespace(initial_memory=lambda: None)
        self.traces = []

    def policy(self, state, explores=False):
        def act(obs, memory, key):
            self.traces.append(jax.tree.map(lambda x: (x.dtype.name, x.shape), obs))
            total = sum(x.sum() for x in jax.tree.leaves(obs)) + jnp.float32(0)
            total = total + jax.random.normal(key) if explores else total
            return {"force": jnp.stack([total, -total]), "choice": jnp.int32(total)}, memory, {}

        return act


def made(space):
    workflow = Sums(space)
    return workflow, Policy(workflow, SimpleNamespace(env_params=None))


def test_lists_numpy_and_jax_arrays_are_one_observation_and_one_compilation():
    workflow, policy = made(Box(-1.0, 1.0, (2,)))
    given = ([1, 2], (1.0, 2.0), np.array([1.0, 2.0]), np.array([1, 2]), np.float16([1, 2]), jnp.array([1.0, 2.0]))
    for obs in given:
        action = policy(obs)
        assert type(action["force"]) is np.ndarray
        assert action["force"].dtype == np.float32
        np.testing.assert_array_equal(action["force"], [3, -3])
        assert isinstance(action["choice"], np.int32)
        assert action["choice"] == 3
    assert workflow.traces == [("float32", (2,))]
    action["force"] += 1  # it is one's own


def test_batches_of_any_axes_are_compiled_once_for_each_size():
    workflow, policy = made(Box(-1.0, 1.0, (2,)))
    obs = np.arange(12.0).reshape(2, 3, 2)
    for batch in (obs, obs.astype(np.float32), obs.tolist(), obs.reshape(6, 2), obs.reshape(3, 2, 2)):
        np.testing.assert_array_equal(policy(batch)["choice"], np.sum(batch, -1))
        assert policy(batch)["force"].shape == (*np.shape(batch)[:-1], 2)
    assert len(workflow.traces) == 1
    assert policy(np.zeros((0, 2)))["force"].shape == (0, 2)


def test_parts_of_a_dict_have_their_own_dtypes_and_share_the_batch():
    workflow, policy = made(PARTS)
    assert policy(VALUE)["choice"] == 4  # 0.5 - 1 + 1 + 2 + 2, cut
    seen = {"inner": {"told": ("int32", ())}, "place": ("int32", (2,)), "seen": ("float32", (2,))}
    assert workflow.traces == [seen]
    several = {"seen": np.zeros((4, 2)), "place": np.ones((4, 2)), "inner": {"told": [0.0, 1.0, 2.0, 0.0]}}
    np.testing.assert_array_equal(policy(several)["choice"], [2, 3, 4, 2])
    assert workflow.traces == [seen] * 2
    assert made(Discrete(3))[1](np.int64(2))["choice"] == 2


def test_a_key_or_a_seed_explores():
    workflow, policy = made(Box(-1.0, 1.0, (2,)))
    drawn = policy(np.zeros((5, 2)), jax.random.key(7))["force"]
    assert len(np.unique(drawn)) == 10
    np.testing.assert_array_equal(policy(np.zeros((5, 2)), 7)["force"], drawn)
    np.testing.assert_array_equal(policy(np.zeros((5, 2)), np.int64(7))["force"], drawn)
    assert not np.array_equal(policy(np.zeros((5, 2)), 8)["force"], drawn)
    assert len(workflow.traces) == 1


def test_act_goes_through_jit_vmap_and_scan():
    _, policy = made(Box(-1.0, 1.0, (2,)))
    act, obs = policy.as_policy_fn(), jnp.arange(12.0).reshape(2, 3, 2)
    step = jax.vmap(lambda obs, key: act(obs, policy.memory, key)[0]["choice"])
    keys = jax.random.split(jax.random.key(0), 3)
    found = jax.jit(lambda: jax.lax.scan(lambda carry, obs: (carry, step(obs, keys)), None, obs)[1])()
    np.testing.assert_array_equal(found, policy(obs)["choice"])


@pytest.mark.parametrize(
    ("space", "obs", "key", "message"),
    [
        (Box(-1.0, 1.0, (2,)), [1, 2, 3], None, r"obs=[3]: must have the shape [2], or be a batch"),
        (Box(-1.0, 1.0, (2,)), 1.0, None, r"obs=[]: must have the shape [2], or be a batch"),
        (Box(-1.0, 1.0, (2,)), [[1, 2], [3]], None, r"obs=list: must be numbers of shape [2], or a batch"),
        (Box(-1.0, 1.0, (2,)), "ab", None, r"obs=ab: must be numbers of shape [2], or a batch"),
        (Box(-1.0, 1.0, (2,)), [1, None], None, r"obs=list of object: must be numbers of shape [2], or a batch"),
        (Box(-1.0, 1.0, (2,)), {"a": 1}, None, r"obs={'a': 1}: must be numbers of shape [2], or a batch"),
        (Box(-1.0, 1.0, (2,)), [[0, 0], [0, np.nan]], None, "obs=NaN: must not contain NaN"),
        (PARTS, VALUE | {"seen": [0, np.nan]}, None, "obs['seen']=NaN: must not contain NaN"),
        (Discrete(3), 1.5, None, r"obs=1.5: must be whole numbers of shape [], or a batch"),
        (Discrete(3), np.nan, None, r"obs=nan: must be whole numbers of shape [], or a batch"),
        (PARTS, [1], None, r"obs=list: must be a dict of inner, place, seen"),
        (PARTS, VALUE | {"inner": {}}, None, r"obs['inner']=a dict of nothing: must be a dict of told"),
        (PARTS, VALUE | {"more": 1}, None, r"obs=a dict of seen, place, inner, more: must be a dict of inner, place, "),
        (PARTS, VALUE | {"seen": [[0, 0]] * 3}, None, r"obs=[3, 2]: must have the shape [2], or be a batch"),
        (Discrete(3), 1, jnp.zeros(2, jnp.uint32), "key=[0 0]: must be a whole number from 0 to 2^32 - 1, or a key of"),
        (Discrete(3), 1, -1, r"key=-1: must be a whole number from 0 to 2^32 - 1, or a key of jax.random"),
    ],
)
def test_what_is_no_observation_is_refused_in_one_line(space, obs, key, message):
    with pytest.raises(OptionError) as raised:
        made(space)[1](obs, key)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_traced_observation_is_told_of_act():
    with pytest.raises(OptionError, match=r"use policy.as_policy_fn\(\)"):
        jax.jit(made(Discrete(3))[1])(1)


@pytest.fixture(scope="module")
def remembering():
    """A policy with a GRU, and the workflow and the state that it is of."""
    env = Counting()
    agent = PPO(hidden=(8,), core=GRU(4))
    workflow = OnPolicy(env, agent, num_envs=2, num_steps=2, batch_size=4)
    state = jax.jit(workflow.init)(jax.random.key(0))
    return Policy(workflow, state), workflow, state


@pytest.mark.program
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_a_policy_that_remembers_takes_its_memory_and_gives_it_back(remembering, batch):
    policy, workflow, state = remembering
    obs, memory = np.linspace(-1, 1, 2 * 8).reshape(8, 2), policy.initial_memory(*batch)
    act, n = workflow.policy(state), int(np.prod(batch))
    alone = [workflow.agent.initial_memory()] * n
    for step in range(3):
        now = obs[step : step + n].reshape(*batch, 2)
        action, memory = policy(now.tolist(), memory)
        assert isinstance(action, np.ndarray)
        each = [act(jnp.float32(o), m, jax.random.key(0)) for o, m in zip(now.reshape(n, 2), alone, strict=True)]
        alone = [m for _, m, _ in each]
        np.testing.assert_allclose(action.reshape(n, 1), [a for a, _, _ in each], atol=1e-6)
        np.testing.assert_allclose(memory[0].reshape(n, 4), [m[0] for m in alone], atol=1e-6)
    explored, _ = policy(now, memory, 7)
    assert not np.allclose(explored, policy(now, memory)[0])


@pytest.mark.parametrize(("given", "message"), [
    (lambda policy: policy([0, 0]), r"memory=nothing: a recurrent policy needs it: action, memory = "),
    (lambda policy: policy([0, 0], 3), r"memory=\(\): must have the shapes \(\(4,\),\) of policy.initial_memory\(\)"),
    (lambda policy: policy([[0, 0]] * 3, policy.initial_memory(2)), r"the shapes \(\(3, 4\),\) .*y\(3\)"),
    (lambda policy: policy([0, 0], policy.initial_memory(), 1, 2), r"=4 arguments: takes at most obs, memory and key"),
])  # fmt: skip
def test_a_memory_that_is_not_the_policys_is_refused(remembering, given, message):
    with pytest.raises(OptionError, match=message):
        given(remembering[0])
