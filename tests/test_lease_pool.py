"""Pools of host environments, called as the compiled program calls them."""

import numpy as np
import pytest

from evorl.envs.host import HostEnv, pool_registry
from evorl.envs.host.lease_pool import MAX_FAILED_CALLS, count_awaited
from evorl.envs.host.messages import BatchRequest


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    pool_registry.close_all()


def started(name, n, workers=0, restart=False, **options):
    """Return a pool and the response to a reset of n environments."""
    pool = pool_registry.get_pool(HostEnv(f"tests.hosted:{name}-v0", options, workers, 60.0, restart))
    every, none = np.ones(n, bool), np.zeros(n, bool)
    return pool, pool.reset(every, none, np.zeros(n, np.int32), np.arange(5, 5 + n, dtype=np.uint64))


def stepped(pool, answer):
    n = len(answer[0])
    return pool.step(np.ones(n, bool), *answer[:2], np.full(n, 3))


def test_as_many_answers_are_awaited_as_the_fraction_says():
    pairs = [(batch, n) for n in (1, 5, 10, 48, 127, 4096) for batch in range(1, n + 1, max(n // 50, 1))]
    assert [count_awaited(float(np.float32(batch / n)), n) for batch, n in pairs] == [batch for batch, _ in pairs]


def test_a_restart_that_never_helps_is_a_fault():
    pool, answer = started("Told", 2, restart=True, fault="step", at=1)
    calls = 0
    while pool.fault is None and calls < 2 * MAX_FAILED_CALLS:
        calls += 1
        lease = stepped(pool, answer)[0]
        answer = pool.reset(np.ones(2, bool), np.zeros(2, bool), lease, np.arange(2, dtype=np.uint64))
    assert calls == MAX_FAILED_CALLS
    assert "told to" in str(pool.fault)


def test_calls_without_a_step_are_no_failures():
    pool, answer = started("Told", 2, restart=True, fault="step", at=1)
    for _ in range(MAX_FAILED_CALLS - 1):
        pool.step(np.zeros(2, bool), *answer[:2], np.full(2, 3))
    stepped(pool, answer)
    assert pool.fault is None


def test_each_try_of_a_reset_has_another_seed(tmp_path):
    pool, _ = started("Told", 1, restart=True, fault="reset", log=str(tmp_path))
    seeds = [line.split()[1] for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert len(set(seeds)) == len(seeds) == 3
    assert "5" in seeds
    assert pool.fault is not None


def test_an_environment_that_breaks_at_its_end_leaves_the_others_alone():
    """Its last observation is NaN, and the reset after it fails: its step failed, and no other row is lost."""
    pool, answer = started("Broken", 2, restart=True)
    every = np.ones(2, bool)
    asked = BatchRequest(~every, every, np.arange(2, dtype=np.uint64), 1.0)
    found = pool.step_batch(asked, every, *answer[:2], np.full(2, 3))
    assert pool.fault is None
    assert (found[0] < 0).all()


@pytest.mark.parametrize(("last", "fits"), [(2**31 - 1, True), (2**31, False), (2**32 + 5, False)])
def test_integers_of_64_bits_must_fit_into_32(last, fits):
    pool, answer = started("Wide", 1, last=last)
    assert (pool.fault is None) == fits
    assert fits or "does not fit into int32" in str(pool.fault)
    assert not fits or answer[2].tolist() == [[7, last]]


@pytest.mark.program
@pytest.mark.parametrize("workers", [0, 1])
def test_environments_are_closed_at_the_end(workers, tmp_path):
    started("Broken", 3, workers, closed=str(tmp_path / "closed"))
    pool_registry.close_all()
    assert (tmp_path / "closed").read_text() == "xxxx"  # with the one whose spaces were read
