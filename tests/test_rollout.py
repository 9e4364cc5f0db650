import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import rollout, tree
from evorl.envs.probe import SeenReward
from evorl.rollout import UNLIMITED
from tests.counting import Counting


def policy(obs, memory, keys):
    return jax.vmap(lambda key: jax.random.uniform(key, (1,)))(keys), memory, {}


def setting(env, n, rows, key):
    key_starts, key_play = jax.random.split(key)
    fresh = rollout.starts(env, (), (), jax.random.split(key_starts, (rows, n)), rows)
    return tree.index(fresh, 0), fresh, jax.random.split(key_play, n)


def unroll(env, slots, fresh, keys, num_steps):
    """A play that stores all of its transitions, leaves [num_steps, n, ...]."""
    row = jax.eval_shape(lambda: rollout.interact(env, (), policy, slots, keys)[1])
    stored = jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), row)
    n, rows = len(keys), tree.size(fresh)
    endless = jnp.full(n, UNLIMITED)
    store = lambda stored, transitions, mask: transitions  # noqa: E731
    return rollout.play(env, (), policy, (), slots, fresh, rows, keys, endless, num_steps, num_steps, store, stored)


@pytest.mark.parametrize("fresh_reset", [False, True])
def test_play_begins_a_new_episode_after_each_end_and_keeps_the_true_successor(key, fresh_reset):
    env = Counting(fresh_reset=fresh_reset)
    slots, fresh, keys = setting(env, 16, 8, key)
    end, stats, transitions = jax.jit(lambda: unroll(env, slots, fresh, keys, 40))()
    t = jax.tree.map(np.asarray, transitions)
    ended = t.terminated | t.truncated
    np.testing.assert_array_equal(t.next_obs[ended][:, 0], t.next_obs[ended][:, 1])  # the end, not a reset
    np.testing.assert_array_equal(t.obs[1:][ended[:-1]][:, 0], 0)
    np.testing.assert_array_equal(t.obs[1:][~ended[:-1]], t.next_obs[:-1][~ended[:-1]])
    np.testing.assert_array_equal(t.terminated[ended], t.next_obs[ended][:, 1] % 2 == 1)
    assert not (t.terminated & t.truncated).any()
    np.testing.assert_array_equal(stats.episodes, ended.sum(0))
    np.testing.assert_array_equal(stats.steps, 40)
    np.testing.assert_array_equal(stats.returns, (t.next_obs[..., 1] * ended).sum(0))  # reward 1 a step
    np.testing.assert_array_equal(end.episode_length, np.where(ended[-1], 0, t.next_obs[-1, :, 0]))


def test_one_step_episodes_of_a_fresh_environment_all_differ(key):
    """8 environments x 128 one-step episodes: every start is new; the mean of +-1 is within 4 standard errors of 0."""
    env = SeenReward()
    slots, fresh, keys = setting(env, 8, 1, key)
    _, stats, transitions = unroll(env, slots, fresh, keys, 128)
    assert int(stats.episodes.sum()) == 8 * 128
    assert abs(float(transitions.reward.mean())) < 4 / np.sqrt(8 * 128)
    assert len(np.unique(np.asarray(transitions.action))) > 8 * 128 - 4  # float32 draws may coincide


def played(env, n, key, episodes, steps, chunk):
    slots, fresh, keys = setting(env, n, 8, key)

    def store(stored, transitions, mask):
        chunks, rows = stored
        return chunks + 1, rows + mask.sum()

    return jax.jit(
        lambda: rollout.play(
            env, (), policy, (), slots, fresh, 8, keys, episodes, steps, chunk, store, (jnp.int32(0), jnp.int32(0))
        )
    )()


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_play_stops_within_a_chunk_of_the_longest_episode(key, chunk):
    _, stats, (chunks, rows) = played(Counting(), 32, key, jnp.ones(32, int), UNLIMITED, chunk)
    longest = int(stats.steps.max())
    assert int(chunks) == -(-longest // chunk)
    np.testing.assert_array_equal(stats.episodes, 1)
    np.testing.assert_array_equal(stats.steps, stats.lengths)
    assert int(rows) == int(stats.steps.sum())
    np.testing.assert_array_equal(stats.mean_return, stats.lengths)


def test_play_gives_each_slot_its_own_number_of_episodes(key):
    quota = jnp.array([0, 1, 5])
    _, stats, _ = played(Counting(), 3, key, quota, UNLIMITED, 4)
    np.testing.assert_array_equal(stats.episodes, quota)


def test_play_counts_steps_whatever_the_chunk(key):
    _, stats, (_, rows) = played(Counting(), 3, key, jnp.full(3, UNLIMITED), 10, 4)
    np.testing.assert_array_equal(stats.steps, 10)
    assert int(rows) == 30


def test_a_run_among_others_is_the_run_alone(key):
    """Early exit under vmap: a run that ends first waits, unchanged, for the one that ends last."""

    def run(key):
        slots, fresh, keys = setting(Counting(), 2, 4, key)
        store = lambda stored, transitions, mask: stored + (transitions.action[..., 0] * mask).sum()  # noqa: E731
        return rollout.play(
            Counting(), (), policy, (), slots, fresh, 4, keys, jnp.ones(2, int), UNLIMITED, 2, store, jnp.float32(0)
        )

    keys = jax.random.split(key, 5)
    together = jax.jit(jax.vmap(run))(keys)
    for i in range(5):
        alone = jax.jit(run)(keys[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), together, alone)
