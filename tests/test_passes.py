"""Which segments minibatches take, and advantages that are estimated anew."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl import tree
from evorl.agents import PPO
from evorl.agents.base_agent import fill_spaces
from evorl.agents.losses import RATIO, VALUE
from evorl.agents.muon import Muon
from evorl.agents.puffer import Puffer
from evorl.agents.random import Random
from evorl.envs.sanity import probe
from evorl.errors import OptionError
from evorl.parts import bind, resolve_numbers
from evorl.training import runs
from evorl.training.configuration import config
from evorl.types import Batch, Transition
from evorl.workflows import OnPolicy, segments
from evorl.workflows.minibatch_epochs import run_epochs, standardize_advantages
from evorl.workflows.refreshed_epochs import RefreshedEpochs
from evorl.workflows.sampling import SHUFFLED, PrioritizedSegments, Shuffled, compute_segment_probabilities
from tests.counting import Counting


def puffer(env=None, numbers=None, **options):
    env = env or Counting()
    agent = Puffer(hidden=(8,), optimizer=Muon(), **numbers or {})
    defaults = {"num_envs": 4, "num_steps": 6, "num_epochs": 2, "batch_size": 12, "eval_episodes": 8}
    given = {"sampling": PrioritizedSegments(3), "refresh": "minibatch"}
    return OnPolicy(env, agent, **defaults | given | options)


def by_numpy(t, value, next_value, ratio, h):
    """Backwards, by environment: A = min(rho, ratio) (r + g V' - V) + g lambda min(c, ratio) A' within an episode."""
    advantage, after = np.zeros_like(value), np.zeros(value.shape[1])
    terminated, ended = np.asarray(t.terminated), np.asarray(t.is_done)
    for i in reversed(range(len(value))):
        error = np.asarray(t.reward)[i] + h.discount * np.where(terminated[i], 0, next_value[i]) - value[i]
        carried = h.discount * h.gae_lambda * np.minimum(h.max_c, ratio[i]) * after
        after = np.minimum(h.max_rho, ratio[i]) * error + np.where(ended[i], 0, carried)
        advantage[i] = after
    return advantage


def test_advantages_are_those_of_numpy_with_truncation():
    rng, agent = np.random.default_rng(0), Puffer(max_rho=0.9, max_c=1.3)
    shape = 12, 50
    value, next_value, reward = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    ratio = np.exp(rng.normal(size=shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.15
    truncated = ~terminated & (rng.random(shape) < 0.15)
    t = Transition(None, None, *map(jnp.asarray, (reward, reward, terminated, truncated)))
    t = replace(t, next_obs=None)
    found, target = jax.jit(jax.vmap(agent.estimate_advantages, 1, 1))(t, ratio, value, next_value)
    np.testing.assert_allclose(found, by_numpy(t, value, next_value, ratio, agent), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, found + value, rtol=1e-4, atol=1e-5)


def test_at_ratio_one_they_are_generalized_advantages():
    rng = np.random.default_rng(1)
    value, next_value, reward = (jnp.asarray(rng.normal(size=20), jnp.float32) for _ in range(3))
    ends = jnp.asarray(rng.random((2, 20)) < 0.1)
    t = Transition(None, None, reward, None, ends[0], ends[1] & ~ends[0])
    given = t, jnp.ones(20), value, next_value
    ours, theirs = (agent(discount=0.97, gae_lambda=0.8).estimate_advantages(*given) for agent in (Puffer, PPO))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_segments_are_drawn_by_their_advantages_none_twice():
    """First draws by a chi-square test; pairs by the probability of one after another without replacement."""
    advantage = jnp.asarray([[0.0, 0.0], [1.0, -1.0], [3.0, 1.0], [-0.5, 0.0], [jnp.nan, 1.0]])
    p = np.asarray(compute_segment_probabilities(advantage, 0.5), float)
    w = np.array([0, 2**0.5, 2, 0.5**0.5, 0]) + 1e-6
    np.testing.assert_allclose(p, w / w.sum(), rtol=1e-5)
    sampling = PrioritizedSegments(2, alpha=0.5, beta=0.7)
    draw = lambda key: sampling.sample(key, jnp.arange(2), advantage)  # noqa: E731
    rows, weight = jax.vmap(draw)(jax.random.split(jax.random.key(0), 20_000))
    assert (rows[:, 0] != rows[:, 1]).all()
    np.testing.assert_allclose(weight, (5 * p[np.asarray(rows)]) ** -0.7, rtol=1e-4)
    likely = np.flatnonzero(p > 1e-3)
    counts = np.array([(np.asarray(rows[:, 0]) == i).sum() for i in likely])
    assert counts.sum() == 20_000
    assert stats.chisquare(counts, 20_000 * p[likely] / p[likely].sum()).pvalue > 0.01
    pairs = {(i, j): p[i] * p[j] / (1 - p[i]) for i in likely for j in likely if i != j}
    seen = [(np.asarray(rows) == pair).all(1).sum() for pair in pairs]
    expected = np.array(list(pairs.values()))
    assert stats.chisquare(seen, expected / expected.sum() * sum(seen)).pvalue > 0.01


def test_shuffled_takes_its_turn():
    turn = jnp.array([4, 0, 2])
    rows, weight = SHUFFLED.sample(jax.random.key(0), turn, jnp.ones((5, 1)))
    assert (rows.tolist(), weight) == (turn.tolist(), None)


@dataclass(frozen=True)
class Told(Random):
    """An agent whose metrics are what it is given; of each row the value is one more than before, the ratio twice 1."""

    def loss(self, params, batch):
        del params
        seen = {"value": batch.value.mean(), "advantage": batch.advantage.mean(), "target": batch.target.mean()}
        return jnp.float32(0), seen

    def loss_with_rows(self, params, batch):
        of_rows = {VALUE: batch.value + 1, RATIO: jnp.full_like(batch.value, 2.0)}
        return jnp.float32(0), self.loss(params, batch)[1] | of_rows

    def update(self, state, loss):
        return state + 1, loss(())[1]

    def early_stop(self, metrics):
        del metrics
        return False


TOLD = fill_spaces(Told(), Counting())


@pytest.mark.parametrize(("refresh", "seen"), [
    # (mean value, advantage 10 V + ratio, target V): one minibatch of two a pass, so half of the rows are told in each
    ("never", [(0, 0, 0), (0, 0, 0)]),
    ("epoch", [(0, 1, 0), (1, 12, 1)]),
    ("minibatch", [(0, 1, 0), (1, 12, 1)]),
])  # fmt: skip
def test_what_was_learned_from_is_estimated_anew(refresh, seen):
    nothing = jnp.zeros((4, 3))
    batch = Batch(None, nothing, nothing, nothing, nothing, nothing, ratio=nothing + 1, bootstrap_value=nothing)
    estimated = lambda value, ratio: (10 * value + ratio, value)  # noqa: E731
    epochs = RefreshedEpochs(TOLD, SHUFFLED, 2, False, refresh, estimated)
    first, metrics, _ = jax.jit(epochs.run)(0, batch, jax.random.key(0), jnp.int32(1))
    assert int(first) == 2
    np.testing.assert_allclose([metrics[name] for name in ("value", "advantage", "target")], seen[0])
    _, metrics, done = jax.jit(epochs.run)(0, batch, jax.random.key(0), jnp.int32(2))
    both = np.mean(seen, 0)
    np.testing.assert_allclose([metrics[name] for name in ("value", "advantage", "target")], both)
    assert set(metrics) == {"value", "advantage", "target"}
    assert int(done) == 2


def test_minibatches_of_one_pass_differ_where_each_is_estimated_anew():
    """All segments in each minibatch: the second sees what the first has told; by the epoch it does not."""
    nothing = jnp.zeros((2, 3))
    batch = Batch(None, nothing, nothing, nothing, nothing, nothing, ratio=nothing + 1, bootstrap_value=nothing)
    estimated = lambda value, ratio: (value, value)  # noqa: E731

    @dataclass(frozen=True)
    class Always(Shuffled):
        def sample(self, key, turn, advantage):
            del key, advantage
            return jnp.zeros_like(turn), None

    for refresh, mean in (("minibatch", 0.5), ("epoch", 0.0)):
        epochs = RefreshedEpochs(TOLD, Always(), 1, False, refresh, estimated)
        assert float(epochs.run(0, batch, jax.random.key(0), jnp.int32(1))[1]["target"]) == mean


@dataclass(frozen=True)
class Summing(Told):
    """An agent whose state is, of each segment, how often it was learned from, and in which minibatch last."""

    def loss(self, params, batch):
        return jnp.float32(0), {"segments": batch.value[:, 0].astype(jnp.int32)}

    def update(self, state, loss):
        (counts, last, turn), segments = state, loss(())[1]["segments"]
        return (counts.at[segments].add(1), last.at[segments].set(turn), turn + 1), {}


def test_an_epoch_learns_from_each_segment_once_in_an_order_of_its_own():
    n = 12
    batch = Batch(None, *(jnp.arange(n, dtype=jnp.float32)[:, None],) * 5)
    agent = fill_spaces(Summing(), Counting())
    start = jnp.zeros(n, jnp.int32), jnp.zeros(n, jnp.int32), jnp.int32(0)
    run = jax.jit(lambda times, valid=None: run_epochs(agent, start, batch, jax.random.key(0), times, 3, valid))
    orders = []
    for epochs in (1, 2):
        (counts, last, minibatches), _, done = run(jnp.int32(epochs))
        assert counts.tolist() == [epochs] * n
        assert (int(minibatches), int(done)) == (4 * epochs, epochs)
        assert np.bincount(last - 4 * (epochs - 1)).tolist() == [3] * 4
        orders.append((last % 4).tolist())
    assert orders[0] != orders[1]
    valid = jnp.where(jnp.arange(n) < 8, jnp.arange(n), jnp.arange(n) - 8)  # the last four are not there
    assert run(jnp.int32(1), valid)[0][0].tolist() == [2] * 4 + [1] * 4 + [0] * 4


def test_segments_that_are_not_there_do_not_move_the_priorities_of_others():
    advantage, index = jnp.array([[0.0], [0.0], [0.0], [9.0]]), jnp.arange(4.0)[:, None]
    batch = Batch(None, None, None, index, advantage, index)
    agent, sampling = fill_spaces(Summing(), Counting()), PrioritizedSegments(alpha=1.0)
    epochs = RefreshedEpochs(agent, sampling, 1, False, "never", lambda *_: ())
    start, valid = (jnp.zeros(4, jnp.int32), jnp.zeros(4, jnp.int32), jnp.int32(0)), jnp.array([1, 2, 3, 1])
    assert epochs.run(start, batch, jax.random.key(0), jnp.int32(1), valid)[0][0].tolist() == [0, 0, 0, 4]


def test_advantages_that_are_estimated_anew_are_standardized_among_the_segments_that_are_there():
    none, advantage = jnp.zeros((4, 1)), jnp.array([[100.0], [1.0], [2.0], [3.0]])
    batch = Batch(None, none, none, none, none, none, ratio=none + 1, bootstrap_value=none)
    epochs = RefreshedEpochs(TOLD, SHUFFLED, 2, True, "epoch", lambda *_: (advantage, none))
    metrics = epochs.run(0, batch, jax.random.key(0), jnp.int32(1), jnp.array([1, 2, 3, 1]))[1]
    assert float(metrics["advantage"]) == pytest.approx(0, abs=1e-6)


def test_plain_epochs_are_those_that_nothing_refreshes():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
    batch = Batch(None, x, x, x, x, x)
    plain = run_epochs(TOLD, 0, standardize_advantages(batch), jax.random.key(1), jnp.int32(3), 2)
    refreshed = RefreshedEpochs(TOLD, SHUFFLED, 2, True, "never", lambda *_: ())
    for ours, theirs in zip(
        jax.tree.leaves(plain),
        jax.tree.leaves(refreshed.run(0, batch, jax.random.key(1), jnp.int32(3))),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.program
def test_other_values_and_ratios_give_the_advantages_of_numpy():
    """On a rollout with episodes that end within it, in segments of two steps."""
    workflow = puffer(sampling=Shuffled(2), numbers={"max_rho": 0.9})
    state = jax.jit(workflow.init)(jax.random.key(3))
    state, rollout, _ = jax.jit(workflow.collect)(state, jax.random.key(4))
    state, batch = jax.jit(workflow.prepare_batch)(state, rollout)
    rng = np.random.default_rng(0)
    value, ratio = rng.normal(size=(6, 4)), np.exp(rng.normal(size=(6, 4)))
    given = segments.split_into_segments((jnp.float32(value), jnp.float32(ratio)), 2)
    advantage, target = workflow.bound(state).make_refreshed_epochs(state, rollout, batch).estimate_advantages(*given)
    scale = float(workflow.value_scale(state))
    cut = np.asarray(rollout.truncated).copy()
    cut[-1] = True
    next_value = np.where(cut, batch.bootstrap_value, np.roll(value, -1, 0))
    assert rollout.is_done[:-1].any()
    expected = by_numpy(replace(rollout, reward=rollout.reward / scale), value, next_value, ratio, workflow.agent)
    np.testing.assert_allclose(segments.join_segments(advantage, 4), scale * expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(segments.join_segments(target, 4), expected + value, rtol=1e-4, atol=1e-4)
    again = (
        workflow.bound(state)
        .make_refreshed_epochs(state, rollout, batch)
        .estimate_advantages(*segments.split_into_segments((batch.value, batch.ratio), 2))
    )
    np.testing.assert_allclose(segments.join_segments(again[0], 4), batch.advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_segments_are_joined_as_they_were_cut(steps):
    x = np.arange(24.0).reshape(6, 4)
    cut, joined = jax.jit(
        lambda x: (
            segments.split_into_segments(x, steps),
            segments.join_segments(segments.split_into_segments(x, steps), 4),
        )
    )(x)
    np.testing.assert_array_equal(joined, x)
    assert cut[0].tolist() == [4.0 * i for i in range(steps)]


def test_weights_are_those_of_normalized_advantages():
    epochs = RefreshedEpochs(TOLD, SHUFFLED, 2, True, "never", lambda *_: ())
    advantage = jnp.array([[1.0, 2.0], [3.0, 6.0]])
    part = Batch(None, None, None, None, advantage, None)
    found = epochs.weight_advantages(part, jnp.array([2.0, 0.5])).advantage
    x = np.asarray(advantage)
    np.testing.assert_allclose(found, np.array([[2.0], [0.5]]) * (x - x.mean()) / x.std(), rtol=1e-5)


def test_schedules_end_where_they_should():
    """As PufferLib's: its rate falls along a cosine, its beta rises linearly, over all of a training."""
    workflow, _ = runs.build(config.compose_config(["agent=puffer", "env=fast", "env_steps=100_000"]))
    bound = [bind(workflow, resolve_numbers(workflow), 1000.0 * n) for n in (0, 25, 50, 100, 300)]
    rates = 0.0075 * (1 + np.cos(np.pi * np.array([0, 0.25, 0.5, 1, 1])))
    np.testing.assert_allclose([float(one.agent.learning_rate) for one in bound], rates, atol=1e-7)
    np.testing.assert_allclose([float(one.sampling.beta) for one in bound], [0.2, 0.4, 0.6, 1.0, 1.0], rtol=1e-6)
    workflow, _ = runs.build(config.compose_config(["agent=puffer", "env=fast", "minutes=1"]))
    late = bind(workflow, resolve_numbers(workflow), 1e9)  # of no known end
    np.testing.assert_allclose([late.agent.learning_rate, late.sampling.beta], [0.015, 0.2], rtol=1e-6)


@pytest.mark.program
def test_puffer_learns_a_choice():
    env = probe.ObsActionReward()
    agent = Puffer(hidden=(16,), optimizer=Muon())
    workflow = OnPolicy(env, agent, 32, 4, 1, 32, sampling=PrioritizedSegments(4), refresh="minibatch")
    state = jax.jit(workflow.init)(jax.random.key(0))
    run = jax.jit(lambda state, keys: jax.lax.scan(workflow.step, state, keys))
    state, _ = run(state, jax.random.split(jax.random.key(1), 100))
    after = jax.jit(workflow.evaluate)(state, jax.random.key(2))["return"]
    assert float(after) > 0.9  # 1 if the action is half the observation; the best action without it earns 0.75


@pytest.mark.parametrize(("options", "message"), [
    ({"refresh": "epochs"}, "epoch"),
    ({"sampling": PrioritizedSegments(4)}, "sampling.length=4: must divide num_steps, 6"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        puffer(**options)


def test_a_length_is_not_negative():
    for sampling in (Shuffled, PrioritizedSegments):
        with pytest.raises(OptionError, match=r"sampling.length=-1"):
            sampling(-1)


def test_an_agent_that_cannot_be_refreshed_is_refused():
    env = Counting()
    several = PPO(num_values=2)
    for agent in (Random(), several):
        with pytest.raises(OptionError, match="refresh=epoch: needs an agent that implements"):
            OnPolicy(env, agent, refresh="epoch")


def test_priorities_have_numbers_of_their_own_whatever_the_agent():
    workflow = puffer()
    for one in (workflow, replace(workflow, agent=PPO(hidden=(8,)))):
        state = jax.jit(one.init)(jax.random.key(0))
        assert set(state.numbers["sampling"]) == {"alpha", "beta"}
        assert tree.is_nan_free(state)
