import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.envs.suites.brax import Brax
from evorl.replay.ring import RingBuffer


def rows(*values):
    """Rows of several dtypes that all hold the same value."""
    x = jnp.array(values)
    return {
        "obs": jnp.stack([x, x], 1).astype(jnp.float32),
        "pixels": jnp.broadcast_to(x[:, None, None], (x.size, 2, 2)).astype(jnp.uint8),
        "reward": x.astype(jnp.float32),
        "flag": x % 2 == 1,
    }


def contents(replay):
    return [int(x) for x in replay.row.unpack(replay.tables)["reward"]]


@pytest.mark.program
def test_rows_wrap_around_a_capacity_that_no_batch_divides():
    replay = RingBuffer.empty(5, tree.index(rows(0), 0))
    for batch in (rows(1, 2, 3), rows(4, 5, 6), rows(7)):
        replay = replay.add(batch, jnp.ones(batch["reward"].size, bool))
    # written by hand: 1 2 3 _ _ -> 6 2 3 4 5 -> 6 7 3 4 5
    assert contents(replay) == [6, 7, 3, 4, 5]
    assert (int(replay.position), int(replay.size)) == (2, 5)


def test_masked_rows_leave_no_gap():
    replay = RingBuffer.empty(5, tree.index(rows(0), 0))
    replay = replay.add(rows(1, 2, 3, 4), jnp.array([True, False, False, True]))
    assert contents(replay) == [1, 4, 0, 0, 0]
    assert int(replay.size) == 2


def test_of_more_rows_than_fit_the_newest_stay():
    replay = RingBuffer.empty(4, tree.index(rows(0), 0))
    replay = replay.add(rows(*range(1, 11)), jnp.arange(10) % 2 == 0)  # 1 3 5 7 9
    assert sorted(contents(replay)) == [3, 5, 7, 9]


def test_every_dtype_comes_back_as_it_went_in(key):
    replay = RingBuffer.empty(7, tree.index(rows(0), 0)).add(rows(200, 201, 3), jnp.ones(3, bool))
    sampled = replay.sample(key, (4, 8)).rows
    assert sampled["pixels"].dtype == jnp.uint8
    assert sampled["flag"].dtype == bool
    assert sampled["pixels"].shape == (4, 8, 2, 2)
    np.testing.assert_array_equal(sampled["pixels"][..., 0, 0], sampled["reward"].astype(jnp.uint8))
    np.testing.assert_array_equal(sampled["flag"], sampled["reward"] % 2 == 1)


def test_samples_are_uniform_over_the_rows_there_are(key):
    replay = RingBuffer.empty(100, tree.index(rows(0), 0)).add(rows(1, 2, 3, 4), jnp.ones(4, bool))
    counts = np.bincount(np.asarray(replay.sample(key, (8000,)).rows["reward"], int), minlength=5)
    assert counts[0] == 0
    # chi-square of 4 equal cells, 3 degrees of freedom: 16.3 is the 0.1 % point
    assert ((counts[1:] - 2000) ** 2 / 2000).sum() < 16.3


def test_agrees_with_a_list_over_many_random_adds():
    rng = np.random.default_rng(0)
    replay, kept = RingBuffer.empty(13, tree.index(rows(0), 0)), []
    add = jax.jit(RingBuffer.add)
    for start in range(0, 300, 6):
        mask = rng.random(6) < 0.5
        replay = add(replay, rows(*range(start, start + 6)), jnp.asarray(mask))
        kept = (kept + [i for i in range(start, start + 6) if mask[i - start]])[-13:]
    assert sorted(contents(replay)) == kept


@pytest.mark.program
@pytest.mark.parametrize("name", ["ant"])
def test_a_million_transitions_of_ant_take_their_bytes(name):
    env = Brax(name)
    obs, action = env.observation_space.size, env.action_space.size
    row = {
        "obs": jax.ShapeDtypeStruct((obs,), jnp.float32),
        "next_obs": jax.ShapeDtypeStruct((obs,), jnp.float32),
        "action": jax.ShapeDtypeStruct((action,), jnp.float32),
        "reward": jax.ShapeDtypeStruct((), jnp.float32),
        "terminated": jax.ShapeDtypeStruct((), bool),
        "truncated": jax.ShapeDtypeStruct((), bool),
    }
    shapes = jax.eval_shape(lambda: RingBuffer.empty(1_000_000, row))
    assert (obs, action) == (27, 8)
    assert tree.nbytes(shapes) <= 1.1 * 1_000_000 * (4 * (27 + 27 + 8 + 1) + 2)


def test_rows_that_are_not_finite_are_left_out():
    added = rows(1, 2, 3, 4)
    added["obs"] = added["obs"].at[1, 1].set(jnp.nan)
    added["reward"] = added["reward"].at[2].set(-jnp.inf)
    replay = RingBuffer.empty(5, tree.index(rows(0), 0)).add(added, jnp.array([True, True, True, True]))
    assert contents(replay) == [1, 4, 0, 0, 0]
    assert (int(replay.position), int(replay.size)) == (2, 2)
