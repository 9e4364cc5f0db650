"""Sequences of what environments did in a row: which there are, what they hold, and what agents make of them."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import mesh, tree
from evorl.agents import DQN, SAC, TD3, DiscreteSAC
from evorl.agents.base_agent import fill_spaces
from evorl.agents.losses import td_target
from evorl.ec import CEM
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU, LSTM
from evorl.replay.sequences import SequenceReplay
from evorl.returns import rescale_value, unrescale_value
from evorl.spaces import Discrete
from evorl.types import Transition
from evorl.workflows import CEMRL, ERL, OffPolicy, SharedReplay
from evorl.workflows.base import spread_samples
from tests.counting import Counting
from tests.tiers import program_fixture
from tests.tiny import CHOICES
from tests.tiny import ENV as CONTINUOUS

NUM_ENVS, STEPS, STRIDE = 3, 24, 4
ADD = jax.jit(lambda replay, *given: replay.add(*given))
SMALL = {"length": 5, "burn_in": 2, "stride": STRIDE}
TOTAL = 7


def rows(place, where, ended=False):
    """Of each environment the step that is its `where`-th, [n], which leads from one observation to the next."""
    where = jnp.asarray(where, jnp.float32)
    env_index = 1000.0 * jnp.arange(NUM_ENVS)
    over = jnp.broadcast_to(jnp.asarray(ended), (NUM_ENVS,))
    obs = (env_index + where)[:, None]
    return Transition(obs, where, where, obs + 1, over, jnp.zeros(NUM_ENVS, bool), memory=(env_index + where - 0.5,))


def filled(settings, chunks, ended=lambda env_index, step: False):
    """A replay after random chunks, of which each environment takes its own share, and how many steps each took."""
    row = jax.tree.map(lambda x: x[0], rows(0, np.zeros(NUM_ENVS)))
    replay = settings.empty(NUM_ENVS * STEPS, row, NUM_ENVS)
    rng, taken = np.random.default_rng(0), np.zeros(NUM_ENVS, int)
    for _ in range(chunks):
        share = rng.integers(0, 4, NUM_ENVS)
        mask = np.arange(3)[:, None] < share
        each = [rows(0, taken + i, [ended(s, taken[s] + i) for s in range(NUM_ENVS)]) for i in range(3)]
        replay = ADD(replay, tree.stack(each), mask)
        taken += share
        yield replay, taken


def wanted(taken):
    """By environment and step, where sequences begin that are all there."""
    return {
        (env_index, step)
        for env_index in range(NUM_ENVS)
        for step in range(0, int(taken[env_index]), STRIDE)
        if step + TOTAL <= taken[env_index] and step >= taken[env_index] - STEPS
    }


@pytest.mark.parametrize("alpha", [0.0, 0.9])
def test_sequences_are_what_each_env_did(alpha):
    sample = jax.jit(lambda replay, key: replay.sample(key, (2, 300)))
    for i, (replay, taken) in enumerate(filled(SequenceReplay(**SMALL, alpha=alpha), 60)):
        expected = wanted(taken)
        assert int(replay.size) == len(expected)
        if i % 6 or not expected:
            continue
        drawn = sample(replay, jax.random.key(i)).rows
        obs = np.asarray(drawn.obs)[..., 0]
        assert obs.shape == (2, TOTAL, 300)
        assert drawn.burn_in == 2
        np.testing.assert_array_equal(obs, obs[:, :1] + np.arange(TOTAL)[:, None])
        np.testing.assert_array_equal(drawn.next_obs[..., 0], obs + 1)
        np.testing.assert_array_equal(drawn.memory[0], obs[:, 0] - 0.5)
        assert not np.asarray(drawn.is_done).any()
        found = Counter(divmod(int(x), 1000) for x in obs[:, 0].ravel())
        assert set(found) == expected  # that one of 18 at most is left out in 600 draws has probability 1e-14


def test_priorities_are_of_those_that_are_whole():
    for replay, taken in filled(SequenceReplay(**SMALL), 60):
        numbers = np.asarray(replay.priorities.sum_tree.levels[0])[: NUM_ENVS * STEPS // STRIDE]
        beginnings = {env_index * (STEPS // STRIDE) + step % STEPS // STRIDE for env_index, step in wanted(taken)}
        assert set(np.flatnonzero(numbers)) == beginnings
        assert float(replay.priorities.sum_tree.total) == pytest.approx(numbers.sum())


def test_a_priority_is_a_mix_of_errors():
    *_, (replay, _) = filled(SequenceReplay(**SMALL, alpha=1.0, eta=0.75), 30)
    index = jax.jit(lambda replay: replay.sample(jax.random.key(0), (1,)).index)(replay)
    errors = jnp.array([[-1.0, 0.0, 3.0, 0.0, 1.0]])
    found = replay.update_priorities(index, errors).priorities.sum_tree.get_values(index)
    np.testing.assert_allclose(found, 0.75 * 3 + 0.25 * 1, rtol=1e-5)


@pytest.mark.program
def test_an_env_that_goes_on_elsewhere_was_cut():
    """Its last step is truncated then, but not one whose episode ended, nor that of an environment that goes on."""
    *_, (replay, taken) = filled(SequenceReplay(**SMALL, alpha=0.0), 20, lambda env_index, step: env_index == 2)
    elsewhere = taken + np.array([0, 50, 50])
    for i in range(8):
        replay = replay.add(tree.stack([rows(0, elsewhere + i)]), jnp.ones((1, NUM_ENVS), bool))
    drawn = replay.sample(jax.random.key(0), (500,)).rows
    obs, truncated = np.asarray(drawn.obs)[..., 0], np.asarray(drawn.truncated)
    assert set(obs[truncated]) == {1000 + taken[1] - 1}
    there = obs == 1000 + taken[1] - 1
    assert there.any()
    assert truncated[there].all()


def test_only_an_open_last_step_is_truncated_where_its_env_goes_on_elsewhere():
    """Try environments whose last step was truncated, terminated, and neither."""
    row = jax.tree.map(lambda x: x[0], rows(0, np.zeros(NUM_ENVS)))
    replay = SequenceReplay(**SMALL, alpha=0.0).empty(NUM_ENVS * STEPS, row, NUM_ENVS)
    last = replace(rows(0, np.zeros(NUM_ENVS), [False, True, False]), truncated=jnp.array([True, False, False]))
    replay = ADD(replay, tree.stack([last]), np.ones((1, NUM_ENVS), bool))
    tables = replay.truncate_last_steps(jnp.full((NUM_ENVS, 1), -1.0), jnp.ones(NUM_ENVS, bool))
    after = replay.row.unpack(tree.index(tables, jnp.arange(NUM_ENVS) * replay.steps_per_env))
    np.testing.assert_array_equal(after.truncated, [True, False, True])
    np.testing.assert_array_equal(after.terminated, [False, True, False])


def test_steps_that_are_lost_end_what_is_stored():
    row = jax.tree.map(lambda x: x[0], rows(0, np.zeros(NUM_ENVS)))
    replay = SequenceReplay(**SMALL, alpha=0.0).empty(NUM_ENVS * STEPS, row, NUM_ENVS)
    chunk = tree.stack([rows(0, np.full(NUM_ENVS, i)) for i in range(4)])
    chunk = replace(chunk, reward=chunk.reward.at[2, 1].set(jnp.nan))
    replay = ADD(replay, chunk, np.ones((4, NUM_ENVS), bool))
    np.testing.assert_array_equal(replay.num_filled, [4, 2, 4])
    lost = replace(chunk, memory=(chunk.memory[0].at[1, 0].set(jnp.inf),))
    np.testing.assert_array_equal(replay.add(lost, jnp.ones((4, NUM_ENVS), bool)).num_filled, [5, 4, 8])


@pytest.mark.program
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_devices_divide_the_sequences_of_a_batch_and_not_their_steps(alpha, monkeypatch):
    *_, (replay, _) = filled(SequenceReplay(**SMALL, alpha=alpha), 12)
    samples = jax.eval_shape(lambda: replay.sample(jax.random.key(0), (2, 3)))
    monkeypatch.setattr(mesh, "spread_rows", lambda x, axis, at: jax.tree.map(lambda leaf: leaf.shape[at], x))
    assert samples.rows.reward.shape == (2, TOTAL, 3)
    assert set(jax.tree.leaves(spread_samples(samples))) == {3}


@pytest.mark.program
def test_copies_under_vmap_are_as_alone():
    *_, (replay, _) = filled(SequenceReplay(**SMALL), 30)
    several = tree.broadcast(replay, 2)
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.vmap(lambda replay, key: replay.sample(key, (3, 4)))(several, keys)
    np.testing.assert_array_equal(drawn.index[1], replay.sample(keys[1], (3, 4)).index)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_targets_take_n_rewards_within_the_episode_and_the_sequence(n):
    rng, (steps, batch), discount = np.random.default_rng(0), (6, 5), 0.9
    reward, value = rng.normal(size=(2, steps, batch)).astype(np.float32)
    terminated, truncated = rng.random((2, steps, batch)) < 0.2
    truncated &= ~terminated
    t = Transition(0, 0, jnp.asarray(reward), 0, jnp.asarray(terminated), jnp.asarray(truncated), n_step=n)
    expected = np.zeros((steps, batch))
    for b in range(batch):
        for begin in range(steps):
            for i, step in enumerate(range(begin, steps)):
                expected[begin, b] += discount**i * reward[step, b]
                if terminated[step, b] or truncated[step, b] or i == n - 1 or step == steps - 1:
                    expected[begin, b] += discount ** (i + 1) * value[step, b] * ~terminated[step, b]
                    break
    np.testing.assert_allclose(td_target(t, jnp.asarray(value), discount), expected, rtol=1e-5, atol=1e-6)


def test_values_are_rescaled_and_back():
    x = jnp.array([-1e5, -40.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 40.0, 1e5])
    exact = np.asarray(x, np.float64)
    wanted = np.sign(exact) * (np.sqrt(np.abs(exact) + 1) - 1) + 1e-3 * exact
    np.testing.assert_allclose(rescale_value(x), wanted, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(unrescale_value(rescale_value(x)), x, rtol=1e-3, atol=1e-6)


TRAINED = {"num_envs": 4, "num_steps": 8, "num_updates": 2, "policy_delay": 1, "batch_size": 8, "eval_episodes": 4}
REPLAY = SequenceReplay(length=6, burn_in=3, stride=3)


def off_policy(agent, env, **options):
    core = options.pop("core", GRU(6))
    agent = agent(hidden=(8,), core=core)
    given = TRAINED | {"capacity": 400, "random_steps": 0, "scan_length": 8, "replay": REPLAY}
    return OffPolicy(env, agent, **given | options)


@dataclass(frozen=True)
class Choosing(Counting):
    """Episodes of 1 to 12 steps."""

    longest: int = 12
    max_episode_steps: int = 12

    action_space = Discrete(3)

    def step(self, key, env_state, action, params):
        return super().step(key, env_state, jnp.float32(action)[None], params)


@program_fixture(scope="module")
def played():
    """A DQN with an LSTM whose policy has not changed since it began to play, and sequences of what it did."""
    workflow = off_policy(DQN, Choosing(), core=LSTM(6), num_updates=1)
    state = jax.jit(workflow.init)(jax.random.key(0))
    play = jax.jit(lambda state, key: workflow.bound(state).rollout(state, workflow.plan(state, key)[0], key))
    for i in range(12):
        state, done = play(state, jax.random.key(i))
        state = replace(state, envs=done.envs, iteration=state.iteration + 1)
    return workflow, state, state.replay.sample(jax.random.key(99), (64,))


def step_by_step(network, params, sample, i):
    """Of one sequence the memory before each step and what the network makes of it and of its successor."""
    t = jax.tree.map(lambda x: x[:, i], replace(sample.rows, memory=None))
    memory, found, step = (
        tree.index(sample.rows.memory, i),
        [],
        jax.jit(lambda *given: network.apply(*given, method="step")),
    )
    for j in range(9):
        now = tree.index(t, j)
        after, values = step(params, memory, now.obs)
        found.append((memory, values, step(params, after, now.next_obs)[1]))
        memory = network.core.initial_memory() if now.is_done else after
    return t, found


def test_what_is_learned_from_is_what_acted(played):
    """The memory along a sequence is what another one, which begins within it, has stored."""
    workflow, state, sample = played
    network, params = workflow.agent.network, state.agent.actor.params
    now, following = workflow.agent.values(params, sample.rows)
    stored = {int(index): i for i, index in enumerate(np.asarray(sample.index))}
    compared = 0
    for i in range(12):
        t, found = step_by_step(network, params, sample, i)
        for j in range(6):
            np.testing.assert_allclose(now[j, i], found[j + 3][1], atol=1e-5)
            np.testing.assert_allclose(following[j, i], found[j + 3][2], atol=1e-5)
        other = stored.get(int(sample.index[i]) + 1)
        if other is not None and np.array_equal(sample.rows.obs[0, other], t.obs[3]):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
                found[3][0],
                tree.index(sample.rows.memory, other),
            )
            compared += 1
    assert compared > 3
    assert np.asarray(sample.rows.is_done[:-1]).any()
    assert not np.asarray(sample.rows.is_done[:3]).all()


def test_what_is_remembered_of_a_burn_in_has_no_gradient():
    agent = fill_spaces(DQN(hidden=(4,), core=GRU(4)), CHOICES)
    params = jax.jit(agent.init)(jax.random.key(0)).actor.params
    no, memory = jnp.zeros((5, 2), bool), tree.broadcast(agent.initial_memory(), 2)

    def value(obs, burn_in):
        batch = Transition(obs, no.astype(jnp.int32), no, obs, no, no, memory=memory, burn_in=burn_in)
        return agent.values(params, batch)[0][-1].sum()

    obs = jax.random.normal(jax.random.key(1), (5, 2, 1))
    for burn_in in (0, 2):
        slope = jax.jit(jax.grad(partial(value, burn_in=burn_in)))(obs)
        np.testing.assert_array_equal(np.abs(slope).sum((1, 2)) > 0, np.arange(5) >= burn_in)


def test_the_burn_in_warms_and_has_no_gradient(played):
    workflow, state, sample = played
    params = state.agent.actor.params
    value = lambda obs: workflow.agent.values(params, replace(sample.rows, obs=obs))[0].sum()  # noqa: E731
    slope = np.abs(np.asarray(jax.grad(value)(sample.rows.obs))).sum((1, 2))
    np.testing.assert_array_equal(slope > 0, [False] * 3 + [True] * 6)
    cold = replace(sample.rows, memory=tree.zeros_like(sample.rows.memory))
    goes_on = ~np.asarray(sample.rows.is_done[:3]).any(0) & (np.asarray(sample.rows.obs)[0, :, 0] > 0)
    warm, without = (workflow.agent.values(params, rows)[0] for rows in (sample.rows, cold))
    assert (np.abs(warm - without)[0, goes_on].max(-1) > 1e-4).all()
    never = replace(cold, burn_in=0)
    assert workflow.agent.values(params, never)[0].shape[0] == 9


@pytest.mark.program
@pytest.mark.parametrize("agent", [DQN, DiscreteSAC, SAC, TD3], ids=lambda agent: agent.__name__)
def test_every_agent_learns_from_them(agent):
    workflow = off_policy(agent, CHOICES if agent in (DQN, DiscreteSAC) else CONTINUOUS, n_step=3)
    step, state = jax.jit(workflow.step), jax.jit(workflow.init)(jax.random.key(0))
    for i in range(4):
        state, metrics = step(state, jax.random.key(i))
    assert int(metrics["gradient_steps"]) == 2
    assert bool(tree.is_nan_free(state.agent))
    numbers = state.replay.priorities.sum_tree.levels[0]
    assert len(np.unique(numbers[numbers > 0])) > 1
    assert np.isfinite(float(jax.jit(workflow.evaluate)(state, jax.random.key(9))["return"]))


@pytest.mark.program
def test_populations_and_hybrids_take_them():
    shared = SharedReplay(off_policy(DQN, CHOICES, capacity=800), 2)
    agent = SAC(hidden=(8,), core=GRU(6))
    sizes = {"min_updates": 1, "max_updates": 2, "batch_size": 8, "capacity": 600, "scan_length": 8, "random_steps": 0}
    erl = ERL(CONTINUOUS, agent, replay=REPLAY, fitness_episodes=4, **sizes)
    uniform = replace(REPLAY, alpha=0.0)
    cem_rl = CEMRL(CONTINUOUS, agent, CEM(4), replay=uniform, fitness_episodes=4, **sizes)
    for workflow in (shared, erl, cem_rl):
        step, state = jax.jit(workflow.step), jax.jit(workflow.init)(jax.random.key(0))
        for i in range(4):
            state, metrics = step(state, jax.random.key(i))
        assert int(np.asarray(state.replay.size)) > 0
        assert np.asarray(metrics["gradient_steps"]).min() > 0


WRONG = {
    "replay=UniformReplay: stores single transitions, and the agent is recurrent": {"replay": OffPolicy.replay},
    "capacity=32: must be at least 36, for a sequence of 9 steps of each of 4 environments": {"capacity": 32},
    "capacity=60: must be at least 80, for a sequence and a chunk of each environment": {"capacity": 60},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    def step():
        workflow = off_policy(DQN, CHOICES, **WRONG[message])
        return workflow.step(workflow.init(jax.random.key(0)), jax.random.key(0))

    with pytest.raises(OptionError, match=message):
        jax.eval_shape(step)


@pytest.mark.parametrize(("options", "message"), [
    ({"length": 0}, "length=0: must be at least 1"),
    ({"burn_in": -1}, "burn_in=-1: must not be negative"),
    ({"stride": 0}, "stride=0: must be at least 1"),
    ({"eta": 2.0}, "eta=2.0: must be from 0 to 1"),
    ({"alpha": -1.0}, "alpha=-1.0: must not be negative"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        SequenceReplay(**options)
