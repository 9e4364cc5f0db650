"""The reservoir: what it keeps, row by row as algorithm R does, and how often."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import DQN
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.leagues.training_oracle import make_single_player_env
from evorl.replay import ReservoirReplay
from evorl.replay.reservoir import ReservoirBuffer
from evorl.workflows import OffPolicy

ROW = {"number": jax.ShapeDtypeStruct((), jnp.int32), "real": jax.ShapeDtypeStruct((2,), jnp.float32)}


def rows(numbers):
    numbers = jnp.asarray(numbers, jnp.int32)
    return {"number": numbers, "real": jnp.stack([numbers, -numbers], -1).astype(jnp.float32)}


def kept(reservoir):
    """The numbers of its rows."""
    return np.asarray(reservoir.row.unpack(reservoir.tables)["number"])[: int(reservoir.size)]


def test_it_keeps_what_algorithm_r_keeps_with_the_same_draws():
    """Row by row: the first 5 in order, then each in a drawn place where that is below 5 (Vitter 1985)."""
    capacity, key, rng = 5, jax.random.key(3), np.random.default_rng(0)
    reservoir, table, seen, given = ReservoirBuffer.empty(capacity, ROW, key), [], 0, 0
    add = jax.jit(ReservoirBuffer.add)
    for _ in range(60):
        mask = rng.random((2, 3)) < 0.6
        numbers = given + np.arange(6).reshape(2, 3)
        given += 6
        after = seen + np.cumsum(mask).reshape(-1)
        draws = jax.random.randint(jax.random.fold_in(key, seen), (6,), 0, np.maximum(after, 1), jnp.uint32)
        for number, there, drawn in zip(numbers.ravel(), mask.ravel(), np.asarray(draws), strict=True):
            if not there:
                continue
            seen += 1
            if seen <= capacity:
                table.append(number)
            elif drawn < capacity:
                table[drawn] = number
        reservoir = add(reservoir, rows(numbers), jnp.asarray(mask))
        np.testing.assert_array_equal(kept(reservoir), table)
        assert int(reservoir.num_added) == seen
    real = reservoir.row.unpack(reservoir.tables)["real"]
    np.testing.assert_array_equal(real, np.stack([table, np.negative(table)], -1))


def test_every_row_is_kept_as_often_and_so_is_every_pair():
    """Of 40 rows, in masked batches larger than the capacity of 8; beside NumPy's algorithm R."""
    capacity, runs, total = 8, 4000, 40
    mask = np.ones((5, 10), bool)
    mask[:, ::5] = False  # 8 of 10
    numbers = np.cumsum(mask.ravel()).reshape(mask.shape) - 1

    def one(key):
        reservoir = ReservoirBuffer.empty(capacity, ROW, key)
        for i in range(5):
            reservoir = reservoir.add(rows(numbers[i]), jnp.asarray(mask[i]))
        return reservoir.row.unpack(reservoir.tables)["number"]

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), runs)))
    rng, wanted = np.random.default_rng(1), np.zeros((runs, capacity), int)
    wanted[:] = np.arange(capacity)
    for number in range(capacity, total):
        place = rng.integers(0, number + 1, runs)
        inside = place < capacity
        wanted[inside, place[inside]] = number
    for table in (found, wanted):
        assert (np.diff(np.sort(table), axis=1) > 0).all()  # each at most once
        there = (table[:, :, None] == np.arange(total)).any(1)
        p = capacity / total
        error = np.sqrt(p * (1 - p) / runs)
        assert np.abs(there.mean(0) - p).max() < 4 * error  # of 40 numbers within 4 standard errors
        chi = ((there.sum(0) - runs * p) ** 2 / (runs * p * (1 - p))).sum() * (total - 1) / total
        assert chi < 72.1  # 99.9 % of 39 degrees of freedom
        pairs = (there[:, :20] & there[:, 20:]).mean(0)  # 20 pairs far apart
        p = capacity * (capacity - 1) / (total * (total - 1))
        assert np.abs(pairs - p).max() < 4 * np.sqrt(p * (1 - p) / runs)


@pytest.mark.program
def test_rows_that_are_not_finite_are_left_out_and_samples_are_of_those_there_are(key):
    reservoir = ReservoirBuffer.empty(8, ROW, key)
    given = rows(np.arange(4))
    given["real"] = given["real"].at[2].set(jnp.nan)
    reservoir = reservoir.add(given, jnp.ones(4, bool))
    assert kept(reservoir).tolist() == [0, 1, 3]
    drawn = reservoir.sample(key, (3000,)).rows["number"]
    counts = np.bincount(drawn, minlength=4)
    assert counts[2] == 0
    np.testing.assert_allclose(counts[[0, 1, 3]], 1000, atol=4 * np.sqrt(3000 * 2 / 9))


def test_where_nothing_is_added_nothing_changes(key):
    before = ReservoirBuffer.empty(8, ROW, key)
    after = before.add(rows(np.arange(6)), jnp.zeros(6, bool))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), before, after))


@pytest.mark.program
def test_it_is_a_replay_of_any_workflow():
    env = make_single_player_env(ExtensiveFormGame(Kuhn()))
    agent = DQN(hidden=(4,))
    sizes = {"batch_size": 8, "capacity": 16, "random_steps": 16, "eval_episodes": 4}
    workflow = OffPolicy(env, agent, num_envs=4, num_steps=4, num_updates=2, replay=ReservoirReplay(), **sizes)
    state = workflow.init(jax.random.key(0))
    step = jax.jit(workflow.step)
    for i in range(3):
        state, _ = step(state, jax.random.key(i))
    assert int(state.replay.size) == 16
    assert int(state.replay.num_added) == 16 + 2 * 16
